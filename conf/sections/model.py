"""The policy: weights, tokenizer, renderer, context length."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from conf.sections.cluster_model import CheckpointModel, TableModel
from conf.sections.section import Section

CHAT_TEMPLATE = "chat_template"
"""``model.renderer`` for a family that the `renderers` library does not know."""


class TinyModelConfig(Section):
    """A Qwen3-MoE of about half a million parameters, which comes with agentrl."""

    kind: Literal["tiny"]
    path: Path | None = None
    """Directory of the starting weights (safetensors + config.json); null: those that come with
    agentrl.
    """
    tokenizer: Path | None = None
    """Directory of the tokenizer (tokenizer.json); null: that of ``path``, or the one that comes
    with agentrl.
    """
    renderer: str = "qwen3"
    """Renderer family of the `renderers` library; ``chat_template``: the model's own template, with
    SGLang's parsers, and without exact continuation.
    """
    max_context_tokens: PositiveInt = 1024
    """Longest prompt + completion, in tokens."""


class LocalModelConfig(Section):
    """Any model directory on disk, for an engine that is already running."""

    kind: Literal["local"]
    path: Path | None = None
    """Directory of the starting weights; only a trainer needs it."""
    tokenizer: Path
    """Directory of the tokenizer (tokenizer.json)."""
    renderer: str
    """Renderer family of the `renderers` library; ``chat_template``: the model's own template, with
    SGLang's parsers, and without exact continuation.
    """
    max_context_tokens: PositiveInt = 32768
    """Longest prompt + completion, in tokens."""


class EndpointModelConfig(Section):
    """The model behind an API of texts (``engine=openai``): no weights, tokenizer or template."""

    kind: Literal["endpoint"]
    max_context_tokens: PositiveInt = 131072
    """Longest prompt + completion, in tokens as the endpoint counts them."""

    @property
    def path(self) -> None:
        """None: it has no weights here."""

    @property
    def tokenizer(self) -> None:
        """None: the endpoint has it."""

    @property
    def renderer(self) -> str:
        """Empty: the endpoint renders."""
        return ""


ModelConfig = Annotated[
    TinyModelConfig | LocalModelConfig | EndpointModelConfig | TableModel | CheckpointModel,
    Field(discriminator="kind"),
]
