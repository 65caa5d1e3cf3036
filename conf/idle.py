"""Keys that do nothing beside another key's value, and are refused where they are given.

A rule on values (``rules``) cannot name them, as their defaults stay: another value than by
default is refused. Of a stored configuration, which was checked before, only what is changed in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from conf.error_messages import format_value
from conf.inert import MISSING, resolve_default
from conf.keys import lookup


@dataclass(frozen=True, slots=True)
class Idle:
    """Keys that act with some values of other keys only."""

    keys: tuple[str, ...]
    others: tuple[str, ...]
    acts: Callable[..., bool]
    """Takes the values of ``others``, in order; None for one that the chosen trainer lacks."""
    fix: str
    """The other way out than leaving the key out."""


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


IDLE = (
    Idle(("model.speculative.path", "model.speculative.train_weight"),
         ("model.speculative.steps",), _positive, "set model.speculative.steps, e.g. to 3"),
    Idle(("trainer.weight_sync_dir",), ("trainer.weight_sync",), _among("delta"),
         "set trainer.weight_sync=delta"),
    Idle(("trainer.clip_low",), ("trainer.loss",), _among("ppo", "gspo"),
         "choose trainer.loss=ppo or gspo"),
    Idle(("trainer.clip_high",), ("trainer.loss",), _among("ppo", "gspo", "cispo"),
         "choose trainer.loss=ppo, gspo or cispo"),
    Idle(("trainer.normalize_std",), ("trainer.advantage",), _among("grpo"),
         "choose trainer.advantage=grpo"),
    Idle(("trainer.aggregation_tokens",),
         ("trainer.aggregation", "trainer.advantage", "trainer.credit"), _divides_by_tokens,
         "set trainer.aggregation=constant"),
    Idle(("trainer.correction.cap", "trainer.correction.floor"), ("trainer.correction.truncate",),
         _among("token", "sequence"), "set trainer.correction.truncate=token"),
    Idle(("trainer.kl.estimator", "trainer.kl.place"), ("trainer.kl.weight",), _positive,
         "set trainer.kl.weight above 0"),
    Idle(("trainer.lora.alpha", "trainer.lora.targets"), ("trainer.lora.rank",), _positive,
         "set trainer.lora.rank above 0"),
    Idle(("trainer.decay_steps", "trainer.min_learning_rate"), ("trainer.decay",),
         _among("linear", "cosine"), "set trainer.decay=linear or cosine"),
    Idle(("trainer.sft.batch",), ("trainer.sft.steps",), _positive,
         "set trainer.sft.steps and trainer.sft.path"),
    Idle(("trainer.distill.weight", "trainer.distill.alone", "trainer.distill.deadline_s"),
         ("trainer.distill.url",), _given, "set trainer.distill.url to a teacher"),
    Idle(("trainer.advantage", "trainer.normalize_std", "trainer.credit", "fanout.reward"),
         ("trainer.distill.url", "trainer.distill.alone"),
         lambda url, alone: url is None or not alone,
         "set trainer.distill.alone=false (trainer.aggregation says how tokens are averaged)"),
    Idle(("fanout.long_final",), ("fanout.max_segment_tokens",), _given,
         "set fanout.max_segment_tokens"),
    Idle(("run.eval_every",), ("run.eval_tasks",), _positive, "set run.eval_tasks above 0"),
    Idle(("reward.turn_budget",), ("reward.turn_penalty",), _positive,
         "set reward.turn_penalty above 0"),
    Idle(("reward.token_budget",), ("reward.length_penalty", "reward.overlong_penalty"),
         lambda length, overlong: bool(length or overlong),
         "set reward.length_penalty or reward.overlong_penalty above 0"),
    Idle(("observe.wandb.entity", "observe.wandb.name", "observe.wandb.mode"),
         ("observe.wandb.project",), _given, "set observe.wandb.project"),
    Idle(("observe.mlflow.experiment", "observe.mlflow.name"), ("observe.mlflow.uri",), _given,
         "set observe.mlflow.uri"),
    Idle(("reward.overlong_tokens",), ("reward.overlong_penalty",), _positive,
         "set reward.overlong_penalty above 0"),
)  # fmt: skip
"""Each key of the schema that acts under a condition; ``tests/key_table.txt`` shows each."""


_LEAVE = "leave it out, or"


def find_idle(
    tree: Mapping[str, Any],
    defaults: Mapping[str, Any],
    given: Collection[str],
    changed: Collection[str],
    known: Collection[str] = (),
) -> Iterator[str]:
    """Yield the fault of every key of a resolved configuration that another key leaves idle.

    ``defaults``: by key, interpolations unresolved; ``given``: all keys that are set, ``changed``:
    those of them that are not of a stored configuration; ``known``: faults that are found already,
    whose keys are not judged.
    """
    for idle in IDLE:
        values = [lookup(tree, other)[1] for other in idle.others]
        if idle.acts(*values):
            continue
        if any(other in fault for fault in known for other in idle.others):
            continue
        because = " and ".join(map(_assign, idle.others, values))
        for key in idle.keys:
            there, value = lookup(tree, key)
            set_now = _touches(given, (key,)) and _touches(changed, (key, *idle.others))
            if not there or not set_now:
                continue
            if value != resolve_default(tree, key, value, defaults.get(key, MISSING)):
                yield f"{_assign(key, value)} does nothing with {because}: {_LEAVE} {idle.fix}"


def _touches(changed: Collection[str], keys: tuple[str, ...]) -> bool:
    """Return whether one of the keys is changed; of a plug-in its parts are."""
    return any(each == key or each.startswith(f"{key}.") for each in changed for key in keys)


def _assign(key: str, value: Any) -> str:
    plugin = isinstance(value, Mapping) and value.get("target")
    return f"{key}={plugin or format_value(value)}"
