"""Build the command line of a run's SGLang server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.engine import SglangLaunchEngineConfig
from conf.sections.training import LocalTrainerConfig, LoraConfig, RoutingRolloutConfig
from runners.engines.adapters import adapter_arguments


def make_server_settings(
    config: Config,
    engine: SglangLaunchEngineConfig,
    *,
    weights: Path | None,
    tokenizer: Path,
    version: int,
    lora: LoraConfig | None = None,
) -> dict[str, Any]:
    """Return the settings for ``python -m runners.engines.sglang``.

    Context length, routing, type of numbers and seed come from other sections of the configuration;
    of two equal arguments the last one counts, which is the user's. ``lora``: the adapters that it
    must be able to load; None: none. Raises ConfigError without weights.
    """
    if weights is None:
        raise ConfigError(["engine=sglang_launch serves model.path, which is null: set it"])
    arguments = [
        *("--model-path", str(weights)),
        *("--tokenizer-path", str(tokenizer)),
        *("--context-length", str(config.model.max_context_tokens)),
        *("--weight-version", str(version)),
        *("--tp-size", str(engine.tensor_parallel)),
        *("--mem-fraction-static", str(engine.memory_fraction)),
        *("--random-seed", str(config.seed)),
    ]
    trainer = config.trainer
    if isinstance(trainer, LocalTrainerConfig) and trainer.precision == "bfloat16":
        arguments += ["--dtype", "bfloat16"]  # of a float32 checkpoint SGLang makes float16
    if isinstance(config.routing_replay, RoutingRolloutConfig):
        arguments.append("--enable-return-routed-experts")
    if lora is not None:
        arguments += adapter_arguments(lora)
    for flag, parser in (
        ("--tool-call-parser", engine.tool_call_parser),
        ("--reasoning-parser", engine.reasoning_parser),
    ):
        if parser is not None:
            arguments += [flag, parser]
    return {
        "host": engine.host,
        "port": engine.port,
        "arguments": [*arguments, *engine.arguments],
    }
