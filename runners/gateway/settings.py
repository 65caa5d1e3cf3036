"""The settings of a gateway, declared once: whoever starts one, in its own process or in this one,
fills ``GatewaySettings``.

They travel to the gateway's process as JSON: ``GatewaySettings.model_validate(settings_json)`` is
the settings that ``model_dump(mode="json")`` was made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from conf.schema import Config
from conf.sections.engine import (
    FixedEngine,
    FixedEngineConfig,
    SglangEngineConfig,
    SglangLaunchEngineConfig,
)
from conf.sections.gateway import ControlText, GatewayLimitsConfig
from conf.sections.scenario import compaction_window
from conf.sections.training import SlimeTrainerConfig
from runners.records.routing import RoutingShape
from runners.system.processes import PATIENCE_S

PING_S = 10.0
"""Seconds between server-sent-event pings while the engine generates."""


@dataclass(frozen=True, slots=True)
class SessionSampling:
    """Sampling settings of a session: the campaign decides them, never the client."""

    temperature: float
    """0: greedy."""
    top_p: float
    top_k: int
    """-1: the whole vocabulary."""
    max_new_tokens: int
    """Per turn; a client's smaller ``max_tokens`` wins."""


class ReplicaSettings(BaseModel):
    """Position of one process among the replicas of a gateway; ``ReplicaSet`` makes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: NonNegativeInt
    of: PositiveInt
    admin_key: str
    """That of all of them."""


class GatewaySettings(BaseModel):
    """Everything that a gateway is started with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_dir: Path
    """A run's directory, whose store takes the turns."""
    host: str
    port: NonNegativeInt
    """0: any free port."""
    engine_url: str
    engine_workers: tuple[str, ...] = ()
    """As ``engine.workers``."""
    adapter: str | None = None
    """Name of the LoRA adapters that the engine has loaded for the run; None: whole weights."""
    version_offset: int = 0
    """Added to the engine's weight versions, where it counts them anew in each job (slime)."""
    continue_aborted: bool = False
    """Turns that the engine aborts go on from their tokens: another program (slime) loads its
    weights.
    """
    fixed_engine: FixedEngine | None = None
    """The section of an engine with another API than SGLang's; None: it is at ``engine_url``."""
    tool_call_parser: str | None = None
    """Set if the renderer is the chat template: then the engine's servers parse what is sampled."""
    reasoning_parser: str | None = None
    tokenizer: Path | None
    """Directory that holds ``tokenizer.json``; None: the engine takes texts."""
    renderer: str
    """As ``model.renderer``."""
    control_text: ControlText = "text"
    """As in ``gateway``."""
    max_context_tokens: PositiveInt
    sampling: SessionSampling
    """Defaults: the creation of a session can change them."""
    ping_s: PositiveFloat
    """Seconds of silence after which a stream gets a ping."""
    turn_s: PositiveFloat
    """Deadline of a generation."""
    limits: GatewayLimitsConfig
    """Bounds on one session."""
    engine_attempts: PositiveInt
    engine_calls_per_s: PositiveFloat | None
    adaptive: bool
    """As in ``rollout.limits``."""
    watchdog_s: NonNegativeFloat = 0.0
    """As ``observe.watchdog_s``."""
    compaction_window: PositiveInt | None = None
    """``window_tokens`` of a scenario with compactions."""
    routing: RoutingShape | None = None
    """Set if the engine's routing is to be captured."""
    keep_rollouts: bool = False
    """True: a session that ends becomes a rollout of the run. A campaign's driver keeps its own."""
    store_patience_s: PositiveFloat = 10.0
    """Time to wait for the store while the run's previous gateway, which is ending, holds it."""
    port_patience_s: PositiveFloat = PATIENCE_S
    """The same for the port."""
    metrics_port: PositiveInt | None = None
    """As in ``gateway``."""
    record_wire: bool = False
    """As in ``gateway``."""
    replica: ReplicaSettings | None = None
    """Set for one of several processes, which begins paused."""

    @classmethod
    def from_config(
        cls,
        config: Config,
        *,
        run_dir: Path,
        engine_url: str,
        tokenizer: Path | None,
        routing: RoutingShape | None = None,
        adapter: str | None = None,
        version_offset: int = 0,
        keep_rollouts: bool = False,
        monitored: bool = False,
    ) -> Self:
        """Return the settings of a gateway for the run in ``run_dir``.

        ``routing``: the shape to capture, None to capture none. ``adapter``, ``version_offset``: as
        the fields. ``monitored``: it serves ``gateway.metrics_port``, which one gateway at a time
        can.
        """
        engine, limits, sampling = config.engine, config.rollout.limits, config.sampling
        own_parsers = SglangEngineConfig | SglangLaunchEngineConfig
        parsers = engine if isinstance(engine, own_parsers) else None
        return cls(
            run_dir=run_dir,
            host=config.gateway.host,
            port=config.gateway.port,
            engine_url=engine_url,
            engine_workers=tuple(engine.workers) if isinstance(engine, SglangEngineConfig) else (),
            adapter=adapter,
            version_offset=version_offset,
            continue_aborted=isinstance(config.trainer, SlimeTrainerConfig),
            fixed_engine=engine if isinstance(engine, FixedEngineConfig) else None,
            tool_call_parser=parsers.tool_call_parser if parsers else None,
            reasoning_parser=parsers.reasoning_parser if parsers else None,
            tokenizer=tokenizer,
            renderer=config.model.renderer,
            control_text=config.gateway.control_text,
            max_context_tokens=config.model.max_context_tokens,
            sampling=SessionSampling(
                sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_new_tokens
            ),
            ping_s=PING_S,
            limits=GatewayLimitsConfig.model_validate(config.gateway.limits.model_dump()),
            turn_s=config.rollout.deadlines.turn_s,
            engine_attempts=limits.engine_attempts,
            engine_calls_per_s=limits.engine_calls_per_s,
            adaptive=limits.adaptive,
            watchdog_s=config.observe.watchdog_s,
            compaction_window=compaction_window(config.scenario),
            routing=routing,
            keep_rollouts=keep_rollouts,
            metrics_port=config.gateway.metrics_port if monitored else None,
            record_wire=config.gateway.record_wire,
        )
