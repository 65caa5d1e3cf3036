"""Other rules over a run's stored rollouts: their rewards, advantages and samples.

Invariant: both sides are computed by the functions that train (``StepGroups``, ``build_samples``),
from the store alone, which is only read. Under the run's own rules they yield what is stored, bit
for bit; a rollout of which that is not so is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conf.errors import ExitCode
from conf.schema import Config
from runners.campaigns.what_if.figures import RuleFigures, add_figures, measure
from runners.campaigns.what_if.keys import WhatIfError, change_rules
from runners.campaigns.what_if.rewards import Repayment, rebuild_results
from runners.campaigns.what_if.trained_steps import find_trained_steps
from runners.records.record import RolloutRecord
from runners.records.store import RunStore
from runners.system.plugins import PluginFailedError
from runners.training.advantages import StepGroups
from runners.training.step_samples import (
    LoadRollout,
    StepSamples,
    StoredRollout,
    build_samples,
    leave_out,
    load_rollout,
)


@dataclass(frozen=True, slots=True)
class StepComparison:
    """One step under both rules."""

    step: int
    before: RuleFigures
    after: RuleFigures
    turned: list[str]
    """Rollouts whose advantage has another sign; not to be trained counts as 0."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A run under its own rules and under others."""

    run_dir: str
    changed: dict[str, tuple[Any, Any]]
    """Keys that differ, with both values."""
    steps: list[StepComparison]
    not_reproduced: list[str] = field(default_factory=list)
    """Rollouts whose stored reward, advantage or trained tokens do not follow from the store under
    the run's own rules: another version of agentrl, or of a plug-in, computed them.
    """
    rewards_unchecked: bool = False
    """The run's own reward is a plug-in, which was not called again: its rewards are as stored."""
    reward_saw_less: bool = False
    """A plug-in computed rewards: ``Verdict.tests`` was empty, since not every name is stored."""
    failures: dict[str, str] = field(default_factory=dict)
    """Rollouts, or groups, of which the other rules made nothing, with the reason: a plug-in gave
    none, or the stored turns cannot be read.
    """

    @property
    def total(self) -> tuple[RuleFigures, RuleFigures]:
        """The figures of all steps, before and after."""
        before, after = zip(*((each.before, each.after) for each in self.steps), strict=True)
        return add_figures(before), add_figures(after)

    @property
    def exit_code(self) -> ExitCode:
        """1 if the store is not what today's code makes of it, or if the other rules failed and
        leave nothing to train.
        """
        nothing = bool(self.failures) and not self.total[1].groups_with_gradient
        return ExitCode.FAILURE_BUDGET if self.not_reproduced or nothing else ExitCode.DONE

    def to_dict(self) -> dict[str, Any]:
        """Return the document of ``--json``."""
        total = self.total
        return asdict(self) | {
            "steps": [_to_dict(each) for each in self.steps],
            "total": {"before": total[0].to_dict(), "after": total[1].to_dict()},
            "exit_code": int(self.exit_code),
        }


def ask_what_if(
    run_dir: Path, overrides: Sequence[str], note: Callable[[int], None] = lambda step: None
) -> WhatIf:
    """Return what other rules would have made of a run's rollouts.

    ``note`` is called before each step. Raises ConfigError for keys that the store cannot answer
    for, WhatIfError for a run that has trained on no rollout, PluginError.
    """
    with RunStore.open(run_dir, read_only=True) as store:
        rules = change_rules(store, overrides)
        masked = _read_masked(store)
        own, other = _Rule(rules.before, masked), _Rule(rules.after, masked)
        check = Repayment(rules.before) if rules.before.reward.kind == "tests" else None
        repayment = Repayment(rules.after) if rules.pays_differently else None
        own_code = repayment is not None and rules.after.reward.kind == "custom"
        found = WhatIf(
            str(run_dir),
            rules.changed,
            [],
            rewards_unchecked=check is None,
            reward_saw_less=own_code,
        )
        for step in find_trained_steps(store, rules.before):
            note(step.step)
            records, load = step.records, _load_once(store)
            results = rebuild_results(store, records) if check or repayment else []
            before = own.build(records, load)
            again = records if check is None else check.pay(records, results)
            paid = records if repayment is None else repayment.pay(records, results)
            after = other.build(paid, load) if rules.changed else before
            found.not_reproduced.extend(_find_changed(records, before.records, again))
            found.steps.append(
                StepComparison(
                    step.step,
                    measure(before, rules.before.trainer),
                    measure(after, rules.after.trainer),
                    _find_turned(before.records, after.records),
                )
            )
    if not found.steps:
        raise WhatIfError(
            f"{run_dir} has no finished step that trained on rollouts, so there is nothing to "
            f"compute again: `agentrl status {run_dir}` shows how it stands"
        )
    found.failures.update({} if repayment is None else repayment.failures)
    found.failures.update((other if rules.changed else own).failures)
    return found


class _Rule:
    """A configuration's way from rewards to samples."""

    def __init__(self, config: Config, masked: Mapping[str, str]) -> None:
        self.failures: dict[str, str] = {}
        """Groups and rollouts of which a plug-in made nothing, with the reason."""
        self._config = config
        self._masked = masked

    def build(self, records: Sequence[RolloutRecord], load: LoadRollout) -> StepSamples:
        """Return the samples of a step's rollouts."""
        groups = StepGroups(self._config, records)
        for (step, group), reason in groups.failed.items():
            self.failures[f"group {group} of step {step}"] = reason
        samples = build_samples(groups, load, self._config)
        self.failures.update(samples.unbuilt)
        masked = {
            record.rollout_id: self._masked[record.rollout_id]
            for record in records
            if record.rollout_id in self._masked
            and record.advantage is not None
            and not record.trained_tokens
        }
        return leave_out(samples, masked, self._config.trainer)


def _load_once(store: RunStore) -> LoadRollout:
    """Return a function that reads each rollout of a step once for both rules.

    Without routing, which moves no figure of theirs and can be a thousand times as large.
    """
    known: dict[str, StoredRollout] = {}

    def load(record: RolloutRecord) -> StoredRollout:
        if record.session_id not in known:
            known[record.session_id] = load_rollout(store, None, record)
        return known[record.session_id]

    return load


def _read_masked(store: RunStore) -> dict[str, str]:
    """Return the rollouts that were not trained although they have a grade, with the reason: they
    could not be read at the time, or their teacher failed. A plug-in is asked again.
    """
    events = (event.data for event in store.events("unbuilt"))
    return {
        data["rollout_id"]: data["reason"]
        for data in events
        if not data["reason"].startswith(PluginFailedError.__name__)
    }


def _to_dict(compared: StepComparison) -> dict[str, Any]:
    sides = {"before": compared.before.to_dict(), "after": compared.after.to_dict()}
    return {"step": compared.step, **sides, "turned": compared.turned}


def _find_changed(
    stored: Sequence[RolloutRecord],
    built: Sequence[RolloutRecord],
    paid: Sequence[RolloutRecord],
) -> list[str]:
    """Return the rollouts that are stored otherwise than they are computed, in order."""
    computed = {record.rollout_id: record for record in built}

    def is_same(record: RolloutRecord, again: RolloutRecord) -> bool:
        own = computed[record.rollout_id]
        trained = record.advantage, record.trained_tokens
        if record.reward != again.reward or trained != (own.advantage, own.trained_tokens):
            return False
        parts = record.reward_parts, record.turn_rewards
        # a run from before rewards had parts
        return not record.reward_parts or parts == (again.reward_parts, again.turn_rewards)

    pairs = zip(stored, paid, strict=True)
    return [record.rollout_id for record, again in pairs if not is_same(record, again)]


def _find_turned(before: Sequence[RolloutRecord], after: Sequence[RolloutRecord]) -> list[str]:
    """Return the rollouts whose advantage has another sign, in order."""
    signs = {record.rollout_id: _sign(record.advantage) for record in after}
    return [r.rollout_id for r in before if _sign(r.advantage) != signs[r.rollout_id]]


def _sign(advantage: float | None) -> int:
    return 0 if not advantage else 1 if advantage > 0 else -1
