"""The policy that a run starts from: its weights and tokenizer, and the shape of its routing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.model import TinyModelConfig
from conf.sections.training import RoutingOffConfig, RoutingRolloutConfig
from runners.records.routing import RoutingShape
from runners.records.starting_policy import find_given_files, keep_policy
from runners.training.routing import read_routing_shape


@dataclass(frozen=True, slots=True)
class Policy:
    """The directories of the starting policy."""

    weights: Path
    tokenizer: Path


def prepare_policy(config: Config, run_dir: Path, *, began: bool = False) -> Policy:
    """Return the starting policy of the run in ``run_dir``.

    ``began``: the run has rollouts already. Raises ConfigError if ``model.path`` is needed and
    missing, StartingPolicyError if the policy is not what it was.
    """
    model = config.model
    weights, tokenizer = model.path, model.tokenizer
    if isinstance(model, TinyModelConfig):
        weights, tokenizer = find_given_files(model)
        if weights is None or tokenizer is None:
            kept = keep_policy(run_dir, config.model_dump(mode="json"), began=began)
            weights, tokenizer = weights or kept, tokenizer or kept
    if weights is not None and tokenizer is not None:
        return Policy(weights, tokenizer)
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
