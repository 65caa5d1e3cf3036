"""The policy that a run starts from: its weights and tokenizer, and the shape of its routing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.model import ModelConfig, TinyModelConfig
from conf.sections.scenario import ScenarioConfig
from conf.sections.training import RoutingOffConfig, RoutingRolloutConfig
from runners.training.routing.shape import read_routing_shape
from runners.trajectory.routing import RoutingShape


@dataclass(frozen=True, slots=True)
class Policy:
    """The directories of the starting policy."""

    weights: Path
    tokenizer: Path


def prepare_policy(
    model: ModelConfig, scenario: ScenarioConfig, *, progress: Callable[[str, int, int], None]
) -> Policy:
    """Return the starting policy; make the tiny one, which takes minutes, if it is not cached.

    ``progress`` gets a phase, its steps done and its steps in total. Raises ConfigError if
    ``model.path`` is needed and missing.
    """
    if model.path is not None and model.tokenizer is not None:
        return Policy(model.path, model.tokenizer)
    if isinstance(model, TinyModelConfig):
        # A checkpoint's own: each scenario's policy has another vocabulary.
        if model.path is not None and (model.path / "tokenizer.json").is_file():
            return Policy(model.path, model.path)
        from runners.training.bootstrap import ensure_tiny

        directory = ensure_tiny(model, scenario.kind, progress=progress)
        return Policy(model.path or directory, model.tokenizer or directory)
    raise ConfigError(
        [f"model.path is missing: training model={model.kind} needs the starting weights"]
    )


def find_captured_shape(config: Config, weights: Path | None) -> RoutingShape | None:
    """Return the shape of the routing that the gateway captures; None if it captures none.

    Raises ConfigError if routing is to be replayed and the policy in ``weights`` has none.
    """
    mode = config.routing_replay
    if isinstance(mode, RoutingOffConfig):
        return None
    shape, reason = None, "the policy in it is dense"
    try:
        if weights is None:
            reason = "the shape of the routing is read from its config.json"
        else:
            shape = read_routing_shape(weights)
    except (OSError, ValueError) as error:
        reason = str(error)
    if shape is None:
        at = "null" if weights is None else weights
        fix = "set model.path, or" if weights is None else "set"
        raise ConfigError(
            [
                f"routing_replay={mode.kind} needs a policy that routes, and model.path={at}: "
                f"{reason}; {fix} routing_replay=off"
            ]
        )
    # With routing_replay=recompute the trainer records its own choices, not the engine's.
    return shape if isinstance(mode, RoutingRolloutConfig) else None
