"""Content that spells control tokens, kept plain: their ids come from the template alone.

A tool's result may hold ``<|im_end|>``, by chance or to pass for another turn. Before messages are
rendered, such texts are broken by a mark; the tokenizer of the renderer takes the marks out and
encodes what they stood in as plain text. So any template works, and other texts keep their ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from runners.records.tokenizer import Tokenizer

MARK = "\ufdd0"
"""Breaks a control token's text: a code point that Unicode keeps for such use. Where content has it
already, it is doubled.
"""
ESCAPED = r"\ufdd0"
"""The mark as some templates write it, who escape all but ASCII in their JSON."""
_MARKS = re.compile(rf"(?P<one>{MARK}|\\ufdd0)(?P=one)?")
PLAIN_BY_ITSELF = "gpt-oss"
"""Its library tells content from control tokens, and has a tokenizer of its own."""
ORDINARY = re.compile(
    r"\s+|</?(?:a|b|blockquote|br|caption|code|div|em|h[1-6]|hr|i|img|li|ol|p|s|span|strong|sub|sup"
    r"|table|tbody|td|tfoot|th|thead|tr|u|ul)>"
)
"""Added tokens that are content: runs of blanks, and HTML's elements (Gemma has both)."""


class MarkedTokenizer(Tokenizer):
    """A tokenizer that encodes a text broken by marks as the plain text that it is."""

    def __init__(self, plain: Tokenizer) -> None:
        super().__init__(
            plain.backend, name_or_path=plain.name_or_path, eos_token_id=plain.eos_token_id
        )
        added = sorted(map(str, _added_tokens(plain)), key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, added)) or r"(?!)")

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of ``text``, whose marks are taken out."""
        if not _is_marked(text):
            return super().encode(text, add_special_tokens)
        ids: list[int] = []
        at = 0
        for found in self._added.finditer(text):
            ids += self._encode_part(text[at : found.start()])
            ids += super().encode(found[0])
            at = found.end()
        return ids + self._encode_part(text[at:])

    def _encode_part(self, text: str) -> list[int]:
        """Return the ids of a text between added tokens."""
        if not text:
            return []
        if not _is_marked(text):
            return super().encode(text)
        text = _MARKS.sub(lambda marks: marks["one"] * (marks[0] != marks["one"]), text)
        backend = self.backend
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        words = [text]
        if backend.pre_tokenizer is not None:
            words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for word in words for token in backend.model.tokenize(word)]


def _is_marked(text: str) -> bool:
    return MARK in text or ESCAPED in text


class ContentGuard:
    """Breaks the texts of control tokens in what comes from outside of the template."""

    def __init__(self, tokenizer: Tokenizer, *, breaks: bool = True) -> None:
        """Find the control tokens; without ``breaks`` their texts are counted only."""
        self._breaks = breaks
        tokens = [
            token.content
            for token in _added_tokens(tokenizer)
            if len(token.content) > 1 and (token.special or not ORDINARY.fullmatch(token.content))
        ]
        self._tokens = sorted(tokens, key=len, reverse=True)
        signs = (*self._tokens, MARK, ESCAPED)
        self._signs = [orjson.dumps(sign)[1:-1] for sign in signs]
        """Texts in JSON that something is to be done about."""

    def guard(self, value: Any) -> tuple[Any, int]:
        """Return a JSON value with the texts of control tokens broken, and how many there were."""
        try:
            written = orjson.dumps(value)
        except orjson.JSONEncodeError:  # an integer beyond 64 bits
            written = None
        if written is not None and not any(sign in written for sign in self._signs):
            return value, 0
        guarded, count = _map_texts(value, self._break)
        return guarded if self._breaks else value, count

    def guard_example(
        self, messages: list[dict[str, Any]], tools: Any
    ) -> tuple[list[dict[str, Any]], Any]:
        """Return the messages and tools of an example to learn from, guarded but for the turns of
        the assistant: a policy sampled the control tokens in them.
        """
        keep = _double_marks if self._breaks else str
        guarded = [
            _map_texts(message, lambda text: (keep(text), 0))[0]
            if message["role"] == "assistant"
            else self.guard(message)[0]
            for message in messages
        ]
        return guarded, self.guard(tools)[0]

    def _break(self, text: str) -> tuple[str, int]:
        count = 0
        broken = _double_marks(text)
        for token in self._tokens:
            if found := broken.count(token):
                count += found
                broken = broken.replace(token, token[0] + MARK + token[1:])
        return broken, count


def _double_marks(text: str) -> str:
    """Return a text whose own marks come out of the tokenizer as they are."""
    return text.replace(MARK, MARK + MARK).replace(ESCAPED, f"\\{MARK}{ESCAPED[1:]}")


def _map_texts(value: Any, change: Callable[[str], tuple[str, int]]) -> tuple[Any, int]:
    """Return a JSON value with its texts changed, keys included, and the sum of the counts."""
    match value:
        case str():
            return change(value)
        case list():
            found = [_map_texts(item, change) for item in value]
            return [item for item, _ in found], sum(count for _, count in found)
        case dict():
            keys, items = (_map_texts(list(part), change) for part in (value, value.values()))
            return dict(zip(keys[0], items[0], strict=True)), keys[1] + items[1]
    return value, 0


def guard_content(tokenizer: Tokenizer, family: str) -> tuple[Tokenizer, ContentGuard]:
    """Return the tokenizer for a family's renderer, and the guard of what it renders."""
    if family == PLAIN_BY_ITSELF:
        return tokenizer, ContentGuard(tokenizer, breaks=False)
    return MarkedTokenizer(tokenizer), ContentGuard(tokenizer)


def _added_tokens(tokenizer: Tokenizer) -> Sequence[Any]:
    return list(tokenizer.backend.get_added_tokens_decoder().values())
