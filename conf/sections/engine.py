"""What serves the policy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from conf.sections.section import Section


def _base_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest:
        raise ValueError("must be a base URL such as http://127.0.0.1:30000")
    return url.rstrip("/")


class EmbeddedEngineConfig(Section):
    """agentrl's own engine: SGLang's HTTP API on CPU, a process of this run."""

    kind: Literal["embedded"]
    host: str
    port: Annotated[int, Field(ge=0, le=65535)]
    """0: any free port."""
    max_running_requests: PositiveInt
    """Sequences decoded together."""
    cache_tokens: PositiveInt
    """Tokens the KV cache holds."""
    threads: Annotated[int, Field(ge=0)]
    """Torch threads; 0: one per core."""
    weights: Literal["float32", "bfloat16", "int8"]
    """Precision that the engine keeps its weights in: a lower one makes it another engine than the
    trainer, as servers are.
    """
    router_noise: Annotated[float, Field(ge=0, lt=1)]
    """Noise on its routers, relative to the standard deviation of their weights."""


class SglangEngineConfig(Section):
    """SGLang servers that somebody else started."""

    kind: Literal["sglang"]
    url: Annotated[str, AfterValidator(_base_url)]
    """Base URL of the server, e.g. http://127.0.0.1:30000; of the router in front of ``workers``;
    or, without a router, of any of them.
    """
    workers: list[Annotated[str, AfterValidator(_base_url)]]
    """Base URLs of the servers, if there are several: a session stays at one of them. Behind a
    router they are needed too: it knows neither ``/abort_request`` nor ``/v1/loads``.
    """
    tool_call_parser: str | None
    """SGLang's parser of tool calls, for ``model.renderer=chat_template``."""
    reasoning_parser: str | None
    """SGLang's parser of reasoning, for ``model.renderer=chat_template``."""


class SglangLaunchEngineConfig(Section):
    """An SGLang server that this run starts and ends: ``python -m sglang.launch_server``."""

    kind: Literal["sglang_launch"]
    host: str
    port: Annotated[int, Field(ge=0, le=65535)]
    """0: any free port."""
    start_s: PositiveFloat
    """Until it generates: weights are loaded and graphs captured meanwhile."""
    tensor_parallel: PositiveInt
    """GPUs over which each layer is split (``--tp-size``)."""
    memory_fraction: Annotated[float, Field(gt=0, lt=1)]
    """Share of a GPU's memory for weights and KV cache (``--mem-fraction-static``)."""
    tool_call_parser: str | None
    """SGLang's parser of tool calls, for ``model.renderer=chat_template``."""
    reasoning_parser: str | None
    """SGLang's parser of reasoning, for ``model.renderer=chat_template``."""
    arguments: list[str]
    """Further arguments of ``sglang.launch_server``, as on its command line."""


EngineConfig = Annotated[
    EmbeddedEngineConfig | SglangEngineConfig | SglangLaunchEngineConfig,
    Field(discriminator="kind"),
]
