"""Load the tokenizer and the renderer of a policy, without transformers; train a tiny tokenizer.

This is the only module that imports the `renderers` library: all others use the protocols below.
The tiny tokenizer is a byte-level BPE with Qwen's special tokens, trained on a few lines: quick to
make, exact on any text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol, get_args

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from conf.errors import ConfigError
from conf.sections.model import CHAT_TEMPLATE
from conf.suggestions import suggest

CACHED_TEXT_LENGTH = 32
"""Characters of a text whose encoding is cached: markers, roles, line ends and the head of an
answer, which renderers encode a dozen times per turn.
"""
CACHED_TEXTS = 1024


class Tokenizer:
    """A ``tokenizers`` tokenizer with the methods of transformers' that `renderers` calls.

    It makes no character offsets: they are for content masks, which nothing here reads, and cost
    more than the encoding itself on long prompts.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, name_or_path: str, eos_token_id: int | None
    ) -> None:
        self.backend = backend
        self.name_or_path = name_or_path
        self.eos_token_id = eos_token_id
        self.unk_token_id: int | None = None
        """None, whatever the model has: `renderers` then reports a missing special token as missing
        instead of using the unknown token in its place.
        """
        self._short = lru_cache(CACHED_TEXTS)(self._encode)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of ``text``; an added token written out in it becomes its one id, as in
        the model's own chat template.
        """
        encode = self._short if len(text) <= CACHED_TEXT_LENGTH else self._encode
        return list(encode(text, add_special_tokens))

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # of one text only, but without offsets, which take a seventh of the time
        encoded = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoded[0].ids

    def decode(
        self,
        token_ids: Sequence[int] | int,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        """Return the text of ids, special tokens included unless they are to be skipped.

        Raises NotImplementedError if blanks are to be cleaned up or kept: so `renderers` asks where
        it infers each token's place from the texts of all prefixes, in quadratic time, for content
        masks that nothing here reads.
        """
        if clean_up_tokenization_spaces is not None:
            raise NotImplementedError
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Return the id of a token (None if it has none), or a list of them for several."""
        if isinstance(tokens, str):
            return self.backend.token_to_id(tokens)
        return [self.backend.token_to_id(token) for token in tokens]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One attempt at a tool call, parsed from sampled tokens."""

    raw: str
    """The call as the policy wrote it."""
    name: str | None = None
    arguments: dict[str, Any] | str | None = None
    """A dict if they are a JSON object."""
    status: str = "ok"
    """Verdict of the parser: "ok", or the fault."""
    own_id: str = ""
    """The policy's own id of the call, where its family has ids."""
    recovered: str = ""
    """Kind of mistake in its mark-up, if it was read all the same."""


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """Sampled tokens, parsed."""

    content: str
    reasoning_content: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    """Every attempt at a tool call, in order."""


class RenderedTokens(Protocol):
    """A rendered prompt."""

    token_ids: list[int]


class Renderer(Protocol):
    """Messages to tokens for one model family: the part of `renderers.Renderer` in use."""

    def render_ids(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Return the ids of a whole conversation; raises ValueError if the family refuses it."""
        ...

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
    ) -> RenderedTokens | None:
        """Return the ids of previous prompt + previous output + new messages, with the first two
        unchanged; None if that cannot be proven.
        """
        ...

    def get_stop_token_ids(self) -> list[int]:
        """Return the ids that end a turn."""
        ...


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load ``directory/tokenizer.json``, with the end-of-sequence token of
    ``tokenizer_config.json`` if that file is there.

    Raises ConfigError naming ``model.tokenizer`` if a file cannot be read.
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
    """Return the renderer of a model family (``qwen3``, ``glm-4.5``, …). It keeps the reasoning of
    earlier turns, which the policy sampled and training needs where it was.

    Raises ConfigError naming ``model.renderer`` if the family is unknown or the tokenizer lacks its
    special tokens.
    """
    import renderers  # late: it takes half a second, which --help must not pay

    check_family(family)
    config = _families()[family](thinking_retention="all")
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
    except RuntimeError as error:  # openai_harmony's own class: its vocabulary
        raise ConfigError(
            [
                f"model.renderer={family!r}: {error}. Without a network, put o200k_base.tiktoken "
                "(openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken) into a "
                "directory, and name it in the variable TIKTOKEN_ENCODINGS_BASE"
            ]
        ) from error
    return renderer


def render_example(
    renderer: Renderer,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    trained: list[bool],
) -> tuple[list[int], list[bool]]:
    """Return the ids of a whole conversation and the mask of those that the policy would sample, in
    the messages that are ``trained``; the last reply is closed.

    Raises ValueError if the renderer refuses the conversation, or does not know who says a token.
    """
    import renderers

    if not hasattr(renderer, "render"):
        raise ValueError(
            f"model.renderer={CHAT_TEMPLATE} does not tell which tokens are a reply's: give the "
            "example as input_ids and assistant_masks"
        )
    try:
        found = renderers.build_training_sample(
            renderer, messages, tools=tools, ensure_final_stop=True, message_loss_mask=trained
        )
    except (AttributeError, LookupError, TypeError) as error:  # a part is not of the usual form
        raise ValueError(f"messages: {type(error).__name__}: {error}") from error
    return list(found.token_ids), [bool(each) for each in found.loss_mask]


def check_family(family: str) -> None:
    """Raise ConfigError unless there is a renderer of that name."""
    if family == CHAT_TEMPLATE or family in (configs := _families()):
        return
    hint = suggest(family, configs, " Did you mean {!r}?")
    raise ConfigError(
        [
            f"model.renderer={family!r} is unknown.{hint} Known: {', '.join(sorted(configs))}; "
            f"or {CHAT_TEMPLATE}, whose replies SGLang's parsers read"
        ]
    )


def _families() -> Mapping[str, Any]:
    """Return the config classes of `renderers` by family, without those that need transformers or
    run code of the model's repository.
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
    """Return a JSON object of a tokenizer's directory, empty if there is no such file; raises
    ConfigError.
    """
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
    """Return a special token's text, from a string or from an object with its properties."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Added tokens that are ordinary text to ``skip_special_tokens``, as in Qwen's own tokenizer."""

_SPLIT = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""Qwen's pre-tokenisation."""

_LINES = (
    'You may call one or more functions: {"type": "function", "function": {"name": "Bash"',
    '"description": "Run a command.", "parameters": {"type": "object", "properties": {"command":',
    '{"type": "string"}}, "required": ["command"]}',
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": "calc.py"}}\n</tool_call>',
    "system user assistant tool_response the function adds a and b but subtracts; return a - b",
    '{"name": "Edit", "arguments": {"file_path": "calc.py", "old_string": "a - b"}}',
)


@cache
def tiny_tokenizer() -> tokenizers.Tokenizer:
    """Train the tokenizer (about 0.05 s; the same in every process)."""
    return train_tokenizer(_LINES, 420)


def train_tokenizer(lines: Iterable[str], vocabulary: int) -> tokenizers.Tokenizer:
    """Train a tokenizer of so many tokens, without the added ones, on other lines."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    return tokenizer


def write_tiny_tokenizer(directory: Path, tokenizer: tokenizers.Tokenizer | None = None) -> Path:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into ``directory`` and return it.

    ``tokenizer``: another one of ``train_tokenizer``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (tokenizer or tiny_tokenizer()).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>"}), "utf-8"
    )
    return directory
