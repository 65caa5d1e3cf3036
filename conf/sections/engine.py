"""Engines: the servers that sample from the policy."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from conf.sections.section import BaseUrl, Follows, Port, Section


class EmbeddedEngineConfig(Section):
    """agentrl's own engine: SGLang's HTTP API on CPU, a process of this run."""

    kind: Literal["embedded"]
    host: ClassVar[str] = "127.0.0.1"
    """Address that it listens on."""
    port: Port = 0
    """Port that it listens on; 0: any free one."""
    cache_tokens: Annotated[PositiveInt, Follows("${greatest:65536,${model.max_context_tokens}}")]
    """Capacity of the KV cache in tokens."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Torch threads; 0: one per core."""
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """Precision of the engine's weights; int8 has one scale per output channel. A lower one than
    the trainer's makes engine and trainer differ, as they do with real servers.
    """
    router_noise: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Noise on the weights of the MoE routers, relative to their standard deviation."""


class SglangEngineConfig(Section):
    """SGLang servers that run already."""

    kind: Literal["sglang"]
    url: BaseUrl
    """Base URL of the server, e.g. http://127.0.0.1:30000. With several servers: of the router in
    front of them or, without a router, of any of them.
    """
    workers: list[BaseUrl] = Field(default_factory=list)
    """Base URLs of the servers, if there are several: each session stays at one of them. They are
    needed behind a router too, which has neither ``/abort_request`` nor ``/v1/loads``.
    """
    tool_call_parser: str | None = None
    """SGLang's parser of tool calls, for ``model.renderer=chat_template``."""
    reasoning_parser: str | None = None
    """SGLang's parser of reasoning, for ``model.renderer=chat_template``."""


class SglangLaunchEngineConfig(Section):
    """An SGLang server that this run starts and ends: ``python -m sglang.launch_server``."""

    kind: Literal["sglang_launch"]
    host: ClassVar[str] = "127.0.0.1"
    """Address that it listens on."""
    port: Port = 0
    """Port that it listens on; 0: any free one."""
    start_s: ClassVar[float] = 1800
    """Seconds until it must generate; it loads weights and captures CUDA graphs before."""
    tensor_parallel: PositiveInt = 1
    """GPUs over which each layer is split (``--tp-size``)."""
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Share of a GPU's memory for weights and KV cache (``--mem-fraction-static``)."""
    tool_call_parser: str | None = None
    """SGLang's parser of tool calls, for ``model.renderer=chat_template``."""
    reasoning_parser: str | None = None
    """SGLang's parser of reasoning, for ``model.renderer=chat_template``."""
    arguments: list[str] = Field(default_factory=list)
    """Further arguments of ``sglang.launch_server``, e.g. ``[--dp-size,"2"]``."""


class FixedEngineConfig(Section):
    """A server that runs already, whose weights cannot be updated: for evaluation and recording."""

    url: BaseUrl
    """Base URL of the server, with or without ``/v1``."""


class VllmEngineConfig(FixedEngineConfig):
    """A vLLM server: token ids in, token ids out."""

    kind: Literal["vllm"]
    model: str | None = None
    """Name that the server gives the model (``--served-model-name``); null: the first of its list.
    """


class EndpointEngineConfig(FixedEngineConfig):
    """An API that takes and gives texts: the ids of its tokens are not known."""

    kind: Literal["openai", "anthropic"]
    model: Annotated[str, Field(min_length=1)]
    """Name of the model in every request."""
    sampling_fields: tuple[str, ...]
    """Sampling settings that are sent; the others have their neutral value."""


class OpenaiEngineConfig(EndpointEngineConfig):
    """A server of OpenAI's Chat Completions API: OpenAI, llama.cpp, vLLM, another vendor."""

    kind: Literal["openai"]
    sampling_fields: tuple[Literal["temperature", "top_p", "top_k", "seed"], ...] = (
        "temperature",
        "top_p",
    )
    """Sampling settings that are sent; OpenAI's own API refuses ``top_k``."""
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the limit on sampled tokens; OpenAI's reasoning models take the second only."""


class AnthropicEngineConfig(EndpointEngineConfig):
    """A server of Anthropic's Messages API."""

    kind: Literal["anthropic"]
    sampling_fields: tuple[Literal["temperature", "top_p", "top_k"], ...] = ()
    """Sampling settings that are sent. Anthropic's client has none from version 1 on; earlier
    models take temperature or top_p, not both.
    """


FixedEngine = Annotated[
    VllmEngineConfig | OpenaiEngineConfig | AnthropicEngineConfig, Field(discriminator="kind")
]
EngineConfig = Annotated[
    EmbeddedEngineConfig
    | SglangEngineConfig
    | SglangLaunchEngineConfig
    | VllmEngineConfig
    | OpenaiEngineConfig
    | AnthropicEngineConfig,
    Field(discriminator="kind"),
]
