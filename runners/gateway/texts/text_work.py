"""The work on texts whose length a policy decides: rendering, continuing and reading tokens.

The same functions run in the gateway (short texts) and in a process of its own (long ones), so both
give the same ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.sections.gateway import ControlText, GatewayLimitsConfig
from runners.gateway.calls.families import ORDERED_RESULTS, OWN_IDS, PARSERS
from runners.gateway.calls.values import Tools
from runners.gateway.conversation import TurnRequest
from runners.gateway.dialects.contract import ParsedRequest
from runners.gateway.dialects.endpoints import DIALECTS
from runners.gateway.refusal import (
    PROMPT_TOO_LONG,
    TURNS_SPENT,
    OverLimit,
    RefusalKind,
    Refused,
)
from runners.gateway.request_limits import check_json_shape
from runners.gateway.texts.chat_template import make_renderer
from runners.gateway.texts.control_text import ContentGuard, guard_content
from runners.gateway.texts.family_renderer import FamilyRenderer
from runners.gateway.texts.request_cache import (
    Continuation,
    KnownBody,
    RequestCache,
    read_continuation,
    read_shape,
)
from runners.records.tokenizer import (
    ParsedResponse,
    Renderer,
    Tokenizer,
    ToolCall,
    load_tokenizer,
)

PROMPT_END = 32
"""Tokens of a prompt that a parser sees: they tell whether an answer begins inside of a thought."""


@dataclass(frozen=True, slots=True)
class OutputText:
    """Sampled tokens, read."""

    parsed: ParsedResponse
    retokenizes: bool
    """Encoding their text gives the same tokens."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Messages as ids."""

    ids: list[int]
    forged: int
    """Control tokens that were spelled in them and are plain text."""


class TextWork:
    """The functions of one policy's tokenizer and renderer; it has no state."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        renderer: Renderer,
        family: str,
        guard: ContentGuard | None = None,
    ) -> None:
        """``family``: ``model.renderer``, whose parser reads what is sampled. ``guard`` needs a
        renderer with a ``MarkedTokenizer``; None: content may have control tokens.
        """
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._guard = guard
        self._parser = PARSERS[family]
        self.own_ids = family in OWN_IDS
        """The template repeats the policy's own ids of calls."""
        self.orders_results = family in ORDERED_RESULTS
        """The template writes results in the order of their calls."""
        kept = set(tokenizer.convert_tokens_to_ids(self._parser.kept_stops))
        self._ends = frozenset(renderer.get_stop_token_ids()) - kept

    def stop_token_ids(self) -> tuple[int, ...]:
        """Return the tokens that end a turn."""
        return tuple(self._renderer.get_stop_token_ids())

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens written out."""
        return self._tokenizer.decode(list(ids))

    def render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Rendered:
        """Return a whole conversation as ids; raises Refused if the template refuses it."""
        forged = 0
        if self._guard is not None:
            (messages, tools), forged = self._guard.guard([messages, tools])
        try:
            ids = self._renderer.render_ids(
                messages, tools=tools or None, add_generation_prompt=True
            )
            return Rendered(ids, forged)
        except ValueError as error:
            raise Refused(
                RefusalKind.INVALID, f"messages: the model's template refuses them: {error}"
            ) from error

    def extend(
        self,
        path: list[int],
        prompt_length: int,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
    ) -> Rendered | str:
        """Return the ids that continue a turn, after ``path``: its prompt (``prompt_length`` ids)
        and its sampled output; or the reason why there are none. ``messages`` begin with an input;
        turns of the assistant among them are rendered as the template renders a history.

        Checks that the new prompt begins with the path as it was, whatever the renderer returns:
        the first promise of docs/architecture.md.
        """
        forged = 0
        if self._guard is not None:
            messages, forged = self._guard.guard(messages)
        said = (at for at, message in enumerate(messages) if message["role"] == "assistant")
        inputs = messages[: next(said, len(messages))]
        bridged = self._renderer.bridge_to_next_turn(
            path[:prompt_length], path[prompt_length:], inputs, tools=tools or None
        )
        if bridged is None:
            return "the renderer cannot continue after this output"
        if bridged.token_ids[: len(path)] != path:
            return "the renderer's continuation changes tokens already seen"
        added = bridged.token_ids[len(path) :]
        if len(inputs) < len(messages):
            gone_on = self._go_on(added, inputs, messages)
            return gone_on if isinstance(gone_on, str) else Rendered(gone_on, forged)
        return Rendered(added, forged)

    def _go_on(
        self, added: list[int], inputs: list[dict[str, Any]], messages: list[dict[str, Any]]
    ) -> list[int] | str:
        """Return the ids of ``messages`` after a turn, from those of the first of them, which are
        inputs and end with the prompt of a reply.

        Renderers do not continue a turn with an assistant's. So the rest is taken from a
        conversation of these messages alone, if that begins with the very ids of its inputs.
        """

        def render(some: list[dict[str, Any]], *, with_prompt: bool) -> list[int]:
            before = [{"role": "user", "content": "."}]
            return self._renderer.render_ids(before + some, add_generation_prompt=with_prompt)

        try:
            short, prompted = (render(inputs, with_prompt=each) for each in (False, True))
            whole = render(messages, with_prompt=True)
        except ValueError as error:
            return f"the model's template refuses the assistant's turns: {error}"
        prompt = prompted[len(short) :]
        if prompted[: len(short)] != short or whole[: len(short)] != short:
            return "the template renders what comes before an assistant's turn by that turn"
        if not prompt or added[-len(prompt) :] != prompt:
            return "the renderer's prompt of a reply is not the template's"
        return added[: -len(prompt)] + whole[len(short) :]

    def read_output(
        self, ids: list[int], tools: list[dict[str, Any]], prompt: list[int]
    ) -> OutputText:
        """Parse sampled tokens; ``prompt`` may be the end of it only."""
        end = next((at for at, token in enumerate(ids) if token in self._ends), len(ids))
        text = self._tokenizer.decode(ids[:end])
        prompt_end = self._tokenizer.decode(prompt[-PROMPT_END:])
        parsed = self._parser.parse(text, prompt_end, Tools.of(tools))
        whole = text + self._tokenizer.decode(ids[end:]) if end < len(ids) else text
        return OutputText(parsed, self._tokenizer.encode(whole) == ids)

    def read_unparsed(self, ids: list[int]) -> ParsedResponse:
        """Return sampled tokens as one call that cannot be parsed."""
        raw = self._tokenizer.decode(ids, skip_special_tokens=True)
        return ParsedResponse("", tool_calls=[ToolCall(raw, status="unparsed")])


def make_text_work(tokenizer_dir: Path, renderer: str, control_text: ControlText) -> TextWork:
    """Return the work with the tokenizer in a directory; raises ConfigError."""
    tokenizer = load_tokenizer(tokenizer_dir)
    if control_text == "tokens":
        marked, guard = tokenizer, None
    else:
        marked, guard = guard_content(tokenizer, renderer)
    made = FamilyRenderer(make_renderer(marked, renderer, tokenizer_dir), tokenizer, renderer)
    return TextWork(tokenizer, made, renderer, guard)


def parse_request(
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    limits: GatewayLimitsConfig,
    max_context_tokens: int,
) -> ParsedRequest:
    """Parse a request for a turn; raises Refused, also if it cannot fit into the context."""
    check_json_shape(body, limits)
    parsed = DIALECTS[path].parse_request(body, headers)
    _check_size(parsed, len(body), limits, max_context_tokens)
    return parsed


def parse_first(
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    limits: GatewayLimitsConfig,
    max_context_tokens: int,
) -> tuple[ParsedRequest, KnownBody | None]:
    """Parse a request as ``parse_continuation`` does when nothing is known before it."""
    try:
        found = RequestCache().find(path, body, DIALECTS[path].conversation)
    except (ValueError, RecursionError):
        return parse_request(path, body, headers, limits, max_context_tokens), None
    return parse_continuation(found, headers, limits, max_context_tokens)


def parse_continuation(
    found: Continuation,
    headers: Mapping[str, str],
    limits: GatewayLimitsConfig,
    max_context_tokens: int,
) -> tuple[ParsedRequest, KnownBody | None]:
    """Parse a request as ``parse_request`` does, but only those items of its conversation that are
    not known; return also what was read, None if it had to be read as a whole.
    """
    try:
        parsed, read = read_continuation(DIALECTS[found.path], found, headers)
        if read_shape(read).exceeds(limits):
            raise ValueError("it may exceed the limits")
        _check_size(parsed, len(found.body), limits, max_context_tokens)
        return parsed, read
    except (ValueError, RecursionError, Refused):  # the whole tells what is wrong with it, if it is
        whole = parse_request(found.path, found.body, headers, limits, max_context_tokens)
        return whole, None


def _check_size(
    parsed: ParsedRequest, size: int, limits: GatewayLimitsConfig, max_context_tokens: int
) -> None:
    """Raise Refused for a request of too many pieces, or one that cannot fit into the context;
    ``size``: bytes of its body.
    """
    if len(parsed.request.pieces) > limits.history_pieces:
        raise OverLimit(
            RefusalKind.FORBIDDEN,
            f"{TURNS_SPENT}: the request has {len(parsed.request.pieces)} pieces of history, "
            f"at most {limits.history_pieces} are accepted",
        )
    if size > limits.bytes_per_token * max_context_tokens:
        _check_fits(parsed.request, limits, max_context_tokens)


def _check_fits(request: TurnRequest, limits: GatewayLimitsConfig, max_context_tokens: int) -> None:
    size = count_characters([request.tools, *(piece.arguments for piece in request.pieces)])
    size += sum(len(piece.text) + len(piece.tool_id) + len(piece.name) for piece in request.pieces)
    least = size // limits.bytes_per_token
    if least >= max_context_tokens:
        raise Refused(
            RefusalKind.INVALID,
            f"{PROMPT_TOO_LONG}: {least} tokens > {max_context_tokens} maximum "
            f"(at least, by its {size} characters)",
        )


def count_characters(value: Any, each: int = 0) -> int:
    """Return the length of all texts in a JSON value, keys included, and ``each`` per value."""
    total, rest = 0, [value]
    while rest:
        total += each
        match rest.pop():
            case str() as text:
                total += len(text)
            case dict() as members:
                total += sum(map(len, members))
                rest.extend(members.values())
            case list() as items:
                rest.extend(items)
    return total
