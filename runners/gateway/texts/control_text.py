"""Content that spells control tokens, kept plain: their ids come from the template alone.

A tool's result may hold ``<|im_end|>``, by chance or to pass for another turn. Before messages are
rendered, such texts are broken by a mark; the tokenizer of the renderer takes the marks out and
encodes what they stood in as plain text. So any template works, and other texts keep their ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from runners.records.tokenizer import Tokenizer

MARK = "\ufdd0"
"""Breaks a control token's text: a code point that Unicode keeps for such use. Where content has it
already, it is doubled.
"""
_MARKS = re.compile(f"{MARK}{MARK}?")
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
        if MARK not in text:
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
        if MARK not in text:
            return super().encode(text)
        text = _MARKS.sub(lambda marks: MARK if len(marks[0]) == 2 else "", text)
        backend = self.backend
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        words = [text]
        if backend.pre_tokenizer is not None:
            words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for word in words for token in backend.model.tokenize(word)]


class ContentGuard:
    """Breaks the texts of control tokens in what comes from outside of the template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens = [
            token.content
            for token in _added_tokens(tokenizer)
            if len(token.content) > 1 and (token.special or not ORDINARY.fullmatch(token.content))
        ]
        self._tokens = sorted(tokens, key=len, reverse=True)
        self._signs = [token.encode() for token in (*self._tokens, MARK)]
        """Texts in JSON that something is to be done about."""

    def guard(self, value: Any) -> tuple[Any, int]:
        """Return a JSON value with the texts of control tokens broken, and how many there were."""
        try:
            written = orjson.dumps(value)
        except orjson.JSONEncodeError:  # an integer beyond 64 bits
            return self._guard(value)
        if not any(sign in written for sign in self._signs):
            return value, 0
        return self._guard(value)

    def _guard(self, value: Any) -> tuple[Any, int]:
        match value:
            case str():
                return self._break(value)
            case list():
                found = [self._guard(item) for item in value]
                return [item for item, _ in found], sum(count for _, count in found)
            case dict():
                keys, items = (self._guard(list(part)) for part in (value, value.values()))
                return dict(zip(keys[0], items[0], strict=True)), keys[1] + items[1]
        return value, 0

    def _break(self, text: str) -> tuple[str, int]:
        count = 0
        broken = text.replace(MARK, MARK + MARK)
        for token in self._tokens:
            if found := broken.count(token):
                count += found
                broken = broken.replace(token, token[0] + MARK + token[1:])
        return broken, count


def _added_tokens(tokenizer: Tokenizer) -> Sequence[Any]:
    return list(tokenizer.backend.get_added_tokens_decoder().values())
