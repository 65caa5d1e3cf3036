"""The beginnings of a run: its policy, the shape of the policy's routing, its examples to train on.

All are the same whenever the run is resumed; the examples are read with the policy's tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.model import TinyModelConfig
from conf.sections.training import LocalTrainerConfig, RoutingOffConfig, RoutingRolloutConfig
from runners.gateway.texts.chat_template import make_example_renderer
from runners.records.checkpoints import find_given_files, find_shipped_policy, keep_policy
from runners.records.routing import RoutingShape
from runners.records.store import RunStore
from runners.records.tokenizer import read_json
from runners.training.routing import read_routing_shape
from runners.training.supervised.examples import (
    ExampleReader,
    Examples,
    ExamplesError,
    load_examples,
)

EXAMPLES = "examples"
"""Kind of the event that holds the digest of the file with which the run began."""


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


def open_examples(config: Config, tokenizer: Path | None, weights: Path | None) -> Examples | None:
    """Return the examples of ``trainer.sft``, all of them checked; None if the run has none.

    ``tokenizer`` and ``weights``: the policy's directories, as far as they are there. Raises
    ExamplesError and ConfigError.
    """
    trainer = config.trainer
    if not isinstance(trainer, LocalTrainerConfig) or trainer.sft.path is None:
        return None
    renderer = vocabulary = guard = None
    if tokenizer is not None and tokenizer.is_dir():
        # as the policy is shown such texts in rollouts
        renderer, guard = make_example_renderer(
            tokenizer, config.model.renderer, config.gateway.control_text
        )
    if weights is not None and weights.is_dir():
        shape = read_json(weights / "config.json")
        vocabulary = shape.get("vocab_size") or shape.get("text_config", {}).get("vocab_size")
    reader = ExampleReader(config.model.max_context_tokens, vocabulary, renderer, guard)
    return load_examples(trainer.sft.path, reader, config.seed)


def check_examples(config: Config) -> Examples | None:
    """Return the examples of a run that has not begun, checked as far as its policy is here; None
    if it has none.

    Raises ExamplesError, ConfigError and StartingPolicyError.
    """
    model = config.model
    weights, tokenizer = model.path, model.tokenizer
    if isinstance(model, TinyModelConfig):
        weights, tokenizer = find_given_files(model)
        weights, tokenizer = weights or find_shipped_policy(), tokenizer or find_shipped_policy()
    return open_examples(config, tokenizer, weights)


def describe_examples(config: Config, examples: Examples) -> str:
    """Return the size of the file and of what the run trains of it, in words."""
    assert isinstance(config.trainer, LocalTrainerConfig)
    sft = config.trainer.sft
    taken = sft.steps * sft.batch
    number = len(examples.places)
    return (
        f"{number:,} with {examples.tokens:,} tokens, {examples.trained:,} of them to train; "
        f"{sft.steps:,} steps of {sft.batch:,} are {taken / number:.3g} epochs"
    )


def keep_examples(store: RunStore, examples: Examples | None) -> None:
    """Note which file the run trains on; raises ExamplesError if it began with another one."""
    if examples is None:
        return
    noted = store.events(EXAMPLES)
    if not noted:
        about = {"path": str(examples.path), "sha256": examples.digest}
        store.event(EXAMPLES, about | {"examples": len(examples.places)})
    elif noted[0].data["sha256"] != examples.digest:
        raise ExamplesError(
            f"trainer.sft.path={examples.path} is not the file with which the run began: put that "
            "one back, or start a new run"
        )
