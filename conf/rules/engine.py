"""Rules between the engine and other sections of the configuration; see ``rules``."""

from __future__ import annotations

from collections.abc import Iterator

from conf.rules.rule import Rule
from conf.sections.cluster_model import ClusterModel
from conf.sections.engine import (
    AnthropicEngineConfig,
    EmbeddedEngineConfig,
    EndpointEngineConfig,
    EngineConfig,
    FixedEngineConfig,
)
from conf.sections.model import (
    CHAT_TEMPLATE,
    EndpointModelConfig,
    LocalModelConfig,
    ModelConfig,
)
from conf.sections.run import RunConfig, SamplingConfig
from conf.sections.training import RoutingReplayConfig, SlimeTrainerConfig, TrainerConfig

_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
"""Sampling settings as an endpoint has them where they are not sent."""


def engine_rules(
    engine: EngineConfig, model: ModelConfig, trainer: TrainerConfig
) -> Iterator[Rule]:
    """Yield the rules of the engine: it has weights, reads the replies, holds the context."""
    yield (
        model.renderer == CHAT_TEMPLATE
        and getattr(engine, "tool_call_parser", None) is None
        and not isinstance(trainer, SlimeTrainerConfig),  # its engines have model.parsers
        f"model.renderer={CHAT_TEMPLATE} needs SGLang to read the replies: set engine=sglang and "
        "engine.tool_call_parser",
    )
    context = model.max_context_tokens
    if isinstance(engine, EmbeddedEngineConfig) and not isinstance(trainer, SlimeTrainerConfig):
        yield (
            engine.cache_tokens < context and not isinstance(model, ClusterModel),
            f"engine.cache_tokens={engine.cache_tokens} is less than model.max_context_tokens="
            f"{context}: one long rollout would not fit; raise engine.cache_tokens",
        )
        yield (
            isinstance(model, ClusterModel | LocalModelConfig) and model.path is None,
            "model.path=null leaves engine=embedded without weights: set model.path, or use an "
            "engine that has them (engine=sglang)",
        )


def fixed_weights_rules(
    engine: EngineConfig,
    model: ModelConfig,
    run: RunConfig,
    trainer: TrainerConfig,
    routing: RoutingReplayConfig,
) -> Iterator[Rule]:
    """Yield the rules of engines whose weights cannot be updated: nothing is trained with them."""
    if not isinstance(engine, FixedEngineConfig):
        return
    kind = engine.kind
    yield (
        run.steps > 0,
        f"run.steps={run.steps} trains, and the weights of engine={kind} cannot be updated: "
        "evaluate only (agentrl eval, or run.steps=0), or choose engine=sglang",
    )
    yield (
        routing.kind != "off",
        f"routing_replay={routing.kind} replays what was trained, and engine={kind} is for "
        "evaluation only: set routing_replay=off",
    )
    yield (
        not isinstance(engine, EndpointEngineConfig)
        and not isinstance(model, EndpointModelConfig)
        and model.tokenizer is None,
        f"model.tokenizer=null, and engine={kind} takes token ids of the model that it serves: set "
        "model=local, model.tokenizer to the directory of that model's tokenizer, and "
        "model.renderer to its family",
    )


def endpoint_rules(
    engine: EngineConfig, model: ModelConfig, sampling: SamplingConfig
) -> Iterator[Rule]:
    """Yield the rules of endpoints: they have a model of their own, and get the whole sampling."""
    if not isinstance(engine, EndpointEngineConfig):
        yield (
            isinstance(model, EndpointModelConfig),
            f"engine={engine.kind} takes token ids, and model=endpoint has no tokenizer: choose "
            "engine=openai or anthropic, or model=local with model.tokenizer and model.renderer",
        )
        return
    kind, sent = engine.kind, engine.sampling_fields
    yield (
        not isinstance(model, EndpointModelConfig),
        f"model={model.kind}, and engine={kind} has a model, tokenizer and chat template of its "
        "own: drop model=… (it is model=endpoint), and name the model in engine.model",
    )
    given = {
        "sampling.eval_temperature": ("temperature", sampling.eval_temperature),
        "sampling.top_p": ("top_p", sampling.top_p),
        "sampling.top_k": ("top_k", sampling.top_k),
    }
    for key, (name, value) in given.items():
        yield (
            name not in sent and value != _NEUTRAL[name],
            f"{key}={value:g} would not reach engine={kind}: add {name} to "
            f"engine.sampling_fields, or set {key}={_NEUTRAL[name]:g}",
        )
    yield (
        isinstance(engine, AnthropicEngineConfig) and sampling.eval_temperature > 1,
        f"sampling.eval_temperature={sampling.eval_temperature:g} is more than 1, the greatest "
        f"that engine={kind} takes: lower it",
    )
