"""Tokenizer and renderer of a policy, from a directory that holds ``tokenizer.json``; no
transformers needed.

This is the only module that imports the `renderers` library: everybody else speaks the two
protocols below.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, get_args

import tokenizers

from conf.errors import ConfigError
from conf.sections.model import CHAT_TEMPLATE
from conf.suggestions import suggest

SHORT = 16
"""Characters: markers, roles and line ends, which renderers have encoded a dozen times per turn."""
SHORT_KEPT = 1024


class Tokenizer:
    """A ``tokenizers`` tokenizer behind the surface that `renderers` asks for.

    Character offsets are left out on purpose: they only feed content masks, which nothing here
    reads, and cost more than the encoding itself on long prompts.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, name_or_path: str, eos_token_id: int | None
    ) -> None:
        self.backend = backend
        self.name_or_path = name_or_path
        self.eos_token_id = eos_token_id
        self.unk_token_id: int | None = None
        """None: `renderers` then takes a token that is missing for missing, whatever the model
        calls unknown.
        """
        self._short = lru_cache(SHORT_KEPT)(self._encode)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Encode ``text``; added tokens written out in it become their ids, as in the model's own
        chat template.
        """
        encode = self._short if len(text) <= SHORT else self._encode
        return list(encode(text, add_special_tokens))

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int] | int, skip_special_tokens: bool = False) -> str:
        """Decode ids; special tokens are kept unless asked otherwise."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Return the id of a token (None if it has none), or a list of them for several."""
        if isinstance(tokens, str):
            return self.backend.token_to_id(tokens)
        return [self.backend.token_to_id(token) for token in tokens]


class ToolCall(Protocol):
    """One attempt at a tool call, as parsed from sampled tokens."""

    @property
    def raw(self) -> str:
        """The call as the policy wrote it."""
        ...

    @property
    def name(self) -> str | None:
        """Tool name."""
        ...

    @property
    def arguments(self) -> dict[str, Any] | str | None:
        """Its arguments; a JSON object if all is well."""
        ...

    @property
    def status(self) -> str:
        """Return "ok", or what is wrong with it."""
        ...


class ParsedResponse(Protocol):
    """What sampled tokens say."""

    @property
    def content(self) -> str:
        """Text."""
        ...

    @property
    def reasoning_content(self) -> str | None:
        """Thoughts."""
        ...

    @property
    def tool_calls(self) -> Sequence[ToolCall]:
        """Every attempt at a tool call, in order."""
        ...


class RenderedTokens(Protocol):
    """A rendered prompt."""

    token_ids: list[int]


class Renderer(Protocol):
    """A model family's way between messages and tokens (the part of `renderers.Renderer` that we
    use).
    """

    def render_ids(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Render a whole conversation."""
        ...

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
    ) -> RenderedTokens | None:
        """Continue exactly: previous prompt + previous output + new messages; None if that cannot
        be proven.
        """
        ...

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: list[dict[str, Any]] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse:
        """Read sampled tokens."""
        ...

    def get_stop_token_ids(self) -> list[int]:
        """Return the ids that end a turn."""
        ...


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load ``directory/tokenizer.json``; the end-of-sequence token comes from
    ``tokenizer_config.json`` if it is there.

    Raises ConfigError naming ``model.tokenizer`` if it cannot be read.
    """
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(
            [
                f"model.tokenizer={str(directory)!r}: no tokenizer.json there; "
                "give the directory that holds it"
            ]
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # `tokenizers` raises bare Exception for every fault
        raise ConfigError([f"model.tokenizer: {file} cannot be read: {error}"]) from error
    backend.no_padding()
    backend.no_truncation()
    eos = token_text(read_json(directory / "tokenizer_config.json").get("eos_token"))
    return Tokenizer(
        backend,
        name_or_path=str(directory),
        eos_token_id=None if eos is None else backend.token_to_id(eos),
    )


def load_renderer(tokenizer: Tokenizer, family: str) -> Renderer:
    """Make the renderer of a model family (``qwen3``, ``glm-4.5``, …) that keeps reasoning of
    earlier turns.

    Raises ConfigError naming ``model.renderer`` if the family is unknown or the tokenizer lacks its
    special tokens.
    """
    import renderers  # late: half a second that --help must not pay

    configs = _families()
    if family not in configs:
        hint = suggest(family, configs, " Did you mean {!r}?")
        raise ConfigError(
            [
                f"model.renderer={family!r} is unknown.{hint} Known: {', '.join(sorted(configs))}; "
                f"or {CHAT_TEMPLATE}, whose replies SGLang's parsers read"
            ]
        )
    config = configs[family](thinking_retention="all")
    try:
        renderer: Renderer = renderers.create_renderer(tokenizer, config)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(
            [
                f"model.renderer={family!r} does not fit "
                f"model.tokenizer={tokenizer.name_or_path!r}: {error}; "
                "choose the renderer of the model's own family"
            ]
        ) from error
    return renderer


def _families() -> Mapping[str, Any]:
    """Config classes of `renderers` by family; without those that need transformers or run foreign
    code.
    """
    import renderers

    union, *_ = get_args(renderers.RendererConfig)
    by_name = {config.model_fields["name"].default: config for config in get_args(union)}
    return {
        name: config
        for name, config in by_name.items()
        if name not in {"auto", "default", "custom"}
    }


def read_json(file: Path) -> dict[str, Any]:
    """Return a tokenizer's JSON file, empty if it is not there; raises ConfigError."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError([f"model.tokenizer: {file} cannot be read: {error}"]) from error
    if not isinstance(found, dict):
        raise ConfigError([f"model.tokenizer: {file} cannot be read: it holds no JSON object"])
    return found


def token_text(token: object) -> str | None:
    """Return a special token's text, which stands alone or with its properties."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
