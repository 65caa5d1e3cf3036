"""Keys that do nothing beside another key's value, and are refused where they are given.

A rule on values (``rules``) cannot name them, as their defaults stay: another value than by
default is refused. Of a stored configuration, which was checked before, only what is changed in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from conf.error_messages import format_value
from conf.keys import lookup
from conf.schema_defaults import MISSING


@dataclass(frozen=True, slots=True)
class Dependent:
    """Keys that act with some values of other keys only."""

    keys: tuple[str, ...]
    """Keys, or sections (ending in a dot)."""
    others: tuple[str, ...]
    acts: Callable[..., bool]
    """Takes the values of ``others``, in order; None for one that the chosen trainer lacks."""
    fix: str = ""
    """The other way out than leaving the key out."""
    reason: str = ""
    """Said instead of a way out."""

    def find(self, tree: Mapping[str, Any], given: Collection[str]) -> Iterator[str]:
        """Yield those of the keys that are in a configuration; of a section, what is given."""
        for key in self.keys:
            if key[-1] != "." and lookup(tree, key)[0]:
                yield key
            elif key[-1] == ".":
                choice = f"{key.partition('.')[0]}.kind"  # which has rules
                yield from (name for name in given if name.startswith(key) and name != choice)


def _among(*names: str) -> Callable[[Any], bool]:
    return lambda value: value in names  # a plug-in, which is a mapping, is none of them


def _positive(value: Any) -> bool:
    return bool(value)


def _given(value: Any) -> bool:
    return value is not None


def _divides_by_tokens(mean: Any, advantage: Any, credit: Any) -> bool:
    """As ``LocalTrainerConfig.mean_of_losses``."""
    by_default = advantage == "dr_grpo" or credit == "turn"
    return bool(mean == "constant" or (mean == "auto" and by_default))


DEPENDENT = (
    Dependent(("model.speculative.path", "model.speculative.train_weight"),
              ("model.speculative.steps",), _positive, "set model.speculative.steps, e.g. to 3"),
    Dependent(("trainer.weight_sync_dir",), ("trainer.weight_sync",), _among("delta"),
              "set trainer.weight_sync=delta"),
    Dependent(("trainer.clip_low",), ("trainer.loss",), _among("ppo", "gspo"),
              "choose trainer.loss=ppo or gspo"),
    Dependent(("trainer.clip_high",), ("trainer.loss",), _among("ppo", "gspo", "cispo"),
              "choose trainer.loss=ppo, gspo or cispo"),
    Dependent(("trainer.normalize_std",), ("trainer.advantage",), _among("grpo"),
              "choose trainer.advantage=grpo"),
    Dependent(("trainer.aggregation_tokens",),
              ("trainer.aggregation", "trainer.advantage", "trainer.credit"), _divides_by_tokens,
              "set trainer.aggregation=constant"),
    Dependent(("trainer.correction.cap", "trainer.correction.floor"),
              ("trainer.correction.truncate",),
              _among("token", "sequence"), "set trainer.correction.truncate=token"),
    Dependent(("trainer.kl.estimator", "trainer.kl.place"), ("trainer.kl.weight",), _positive,
              "set trainer.kl.weight above 0"),
    Dependent(("trainer.lora.alpha", "trainer.lora.targets"), ("trainer.lora.rank",), _positive,
              "set trainer.lora.rank above 0"),
    Dependent(("trainer.decay_steps", "trainer.min_learning_rate"), ("trainer.decay",),
              _among("linear", "cosine"), "set trainer.decay=linear or cosine"),
    Dependent(("trainer.sft.batch",), ("trainer.sft.steps",), _positive,
              "set trainer.sft.steps and trainer.sft.path"),
    Dependent(("trainer.distill.weight", "trainer.distill.alone", "trainer.distill.deadline_s"),
              ("trainer.distill.url",), _given, "set trainer.distill.url to a teacher"),
    Dependent(("trainer.advantage", "trainer.normalize_std", "trainer.credit", "fanout.reward"),
              ("trainer.distill.url", "trainer.distill.alone"),
              lambda url, alone: url is None or not alone,
              "set trainer.distill.alone=false (trainer.aggregation says how tokens are averaged)"),
    Dependent(("fanout.long_final",), ("fanout.max_segment_tokens",), _given,
              "set fanout.max_segment_tokens"),
    Dependent(("run.eval_every",), ("run.eval_tasks",), _positive, "set run.eval_tasks above 0"),
    Dependent(("reward.turn_budget",), ("reward.turn_penalty",), _positive,
              "set reward.turn_penalty above 0"),
    Dependent(("reward.token_budget",), ("reward.length_penalty", "reward.overlong_penalty"),
              lambda length, overlong: bool(length or overlong),
              "set reward.length_penalty or reward.overlong_penalty above 0"),
    Dependent(("observe.wandb.entity", "observe.wandb.name", "observe.wandb.mode"),
              ("observe.wandb.project",), _given, "set observe.wandb.project"),
    Dependent(("observe.mlflow.experiment", "observe.mlflow.name"), ("observe.mlflow.uri",), _given,
              "set observe.mlflow.uri"),
    Dependent(("reward.overlong_tokens",), ("reward.overlong_penalty",), _positive,
              "set reward.overlong_penalty above 0"),
    *(Dependent(keys, ("trainer.kind",), _among("slime"), reason=reason) for keys, reason in (
        (("model.stop_token_ids",), "only trainer=slime gives them to engines"),
        (("model.parsers.",), "only trainer=slime starts engines with them"),
        (("model.config",), "only trainer=slime reads the architecture before the start"),
        (("model.speculative.", "model.fp8_path"), "only trainer=slime starts engines with it"),
        (("model.architecture.",), "only trainer=slime takes it here, others read config.json"),
        (("model.layout.",), "only trainer=slime spreads a model over GPUs"),
    )),
    Dependent(("engine.",), ("trainer.kind",), _among("local"),
              reason="it starts SGLang servers of its own, which model.layout describes"),
)  # fmt: skip
"""Each key of the schema that acts under a condition; ``tests/key_table.txt`` shows each."""


def find_dependent(
    tree: Mapping[str, Any],
    defaults: Mapping[str, Any],
    given: Collection[str],
    changed: Collection[str],
    known: Collection[str] = (),
) -> Iterator[str]:
    """Yield the fault of every key of a resolved configuration that does nothing beside another's
    value.

    ``defaults``: by key, interpolations unresolved; ``given``: all keys that are set, ``changed``:
    those of them that are not of a stored configuration; ``known``: faults that are found already,
    whose keys are not judged.
    """
    for row in DEPENDENT:
        values = [lookup(tree, other)[1] for other in row.others]
        if row.acts(*values) or any(o in fault for fault in known for o in row.others):
            continue
        because = " and ".join(map(_assign, row.others, values))
        way_out = f"{row.reason}; leave it out" if row.reason else f"leave it out, or {row.fix}"
        for key in row.find(tree, given):
            set_now = _touches(given, (key,)) and _touches(changed, (key, *row.others))
            if set_now and _differs(tree, key, defaults, changed):
                value = _assign(key, lookup(tree, key)[1])
                yield f"{value} does nothing with {because}: {way_out}"


def _differs(
    tree: Mapping[str, Any], key: str, defaults: Mapping[str, Any], changed: Collection[str]
) -> bool:
    """Return whether a key has another value than by default, which may follow other keys."""
    if key not in defaults:
        return key in changed  # of data, which may have any names
    default, value = defaults[key], lookup(tree, key)[1]
    if "${" in str(default):
        copy = OmegaConf.create(dict(tree))
        OmegaConf.update(copy, key, default)
        default = OmegaConf.select(copy, key)
    return bool(default not in (MISSING, value))


def _touches(changed: Collection[str], keys: tuple[str, ...]) -> bool:
    """Return whether one of the keys is changed; of a plug-in its parts are."""
    return any(each == key or each.startswith(f"{key}.") for each in changed for key in keys)


def _assign(key: str, value: Any) -> str:
    plugin = isinstance(value, Mapping) and value.get("target")
    return f"{key.removesuffix('.kind')}={plugin or format_value(value)}"
