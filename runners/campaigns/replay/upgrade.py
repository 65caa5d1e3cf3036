"""Compare a version of an agent program with what a stored run recorded, before it is trusted.

The rollouts of the run are replayed with it, and their recorded answers come back. Changed
requests, moved branches and lost trained tokens are reported; no trained token may be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.compose import compose
from conf.errors import ExitCode
from conf.program_versions import split_version
from conf.schema import Config
from conf.sections.harness import name_program
from runners.campaigns.replay.run import ReplayError, ReplayResult, replay
from runners.records.outcome import OutcomeClass
from runners.records.record import RolloutRecord
from runners.records.store import RunStore
from runners.rollouts.harnesses.registry import install_harness

ROLLOUTS = 8
"""Rollouts that are replayed: those with the most kinds of branches, then the longest."""


@dataclass(frozen=True, slots=True)
class UpgradeReport:
    """Changes that another version of an agent program brings."""

    run_dir: str
    harness: str
    replays: tuple[ReplayResult, ...]

    @property
    def lost(self) -> int:
        """Trained tokens that are lost."""
        return sum(each.signal.lost for each in self.replays)

    @property
    def recorded(self) -> int:
        """Trained tokens that were recorded."""
        return sum(each.signal.recorded for each in self.replays)

    @property
    def exit_code(self) -> ExitCode:
        """``FAILURE_BUDGET`` if signal is lost."""
        return ExitCode.FAILURE_BUDGET if self.lost else ExitCode.DONE

    def versions(self) -> list[str]:
        """Return the recorded version and the replayed one, where the program reports them."""
        found = (str(v) for each in self.replays for v in each.version.values() if v)
        return list(dict.fromkeys(found))

    def changes(self) -> Counter[str]:
        """Return the requests that differ, by what differs."""
        return Counter(found.what for each in self.replays for found in each.differences)

    def moved(self) -> Counter[str]:
        """Return the turns whose branch is another one, by both branches."""
        total: Counter[str] = Counter()
        for each in self.replays:
            total.update(each.signal.moved)
        return total

    def chains(self) -> dict[str, tuple[int, int]]:
        """Return the chains by kind, recorded and replayed."""
        before: Counter[str] = Counter()
        after: Counter[str] = Counter()
        for each in self.replays:
            for kind, (was, now) in each.signal.chains.items():
                before[kind] += was
                after[kind] += now
        return {kind: (before[kind], after[kind]) for kind in sorted(before | after)}

    def to_dict(self) -> dict[str, Any]:
        """Return the document of ``--json``."""
        return {
            "run_dir": self.run_dir,
            "harness": self.harness,
            "versions": self.versions(),
            "changes": dict(self.changes()),
            "moved": dict(self.moved()),
            "chains": {kind: list(numbers) for kind, numbers in self.chains().items()},
            "signal": {"recorded": self.recorded, "lost": self.lost},
            "rollouts": [each.to_dict() for each in self.replays],
            "exit_code": int(self.exit_code),
        }


def compare_version(
    run_dir: Path, overrides: list[str], show: Callable[[str], None]
) -> UpgradeReport:
    """Replay rollouts of a run with another version of its program; raises AgentrlError.

    ``overrides`` change the stored configuration; a ``harness=NAME@VERSION`` among them changes the
    version alone. ``show`` gets the name of each rollout.
    """
    with RunStore.open(run_dir, read_only=True) as store:
        base = store.config()
        stored = compose([], base=base)
        chosen = _choose(store)
    if not chosen:
        raise ReplayError(
            f"{run_dir} has no rollout that its agent ended itself: there is nothing to replay"
        )
    lines = [each for line in overrides for each in _keep_version(line, stored)]
    config = compose(lines, base=base)
    show(f"{name_program(config.harness)}: looking for the program…")
    install_harness(config.harness)
    replays = []
    for number, record in enumerate(chosen, 1):
        show(f"{record.rollout_id}: {number} of {len(chosen)}…")
        replays.append(replay(run_dir, record.session_id, lines))
    return UpgradeReport(str(run_dir), name_program(config.harness), tuple(replays))


def _keep_version(line: str, stored: Config) -> list[str]:
    """Return a line for the stored configuration, whose other keys of the program stay."""
    split = split_version(line)
    if split is None:
        return [line]
    choice, version = split
    recorded = name_program(stored.harness)
    if choice != f"harness={recorded}":
        raise ReplayError(f"the run was recorded with harness={recorded}, not {line}")
    return [version]


def _choose(store: RunStore) -> list[RolloutRecord]:
    """Return the rollouts to replay: none that the infrastructure or the clock ended."""
    told = (OutcomeClass.POLICY, OutcomeClass.BUDGET)
    found = [
        (len({turn.branch for turn in turns}), len(turns), record)
        for record in store.each_rollout()
        if record.counts
        and record.outcome.code.outcome_class in told
        and record.outcome.code != "budget.wall"
        and (turns := store.turns(record.session_id))
    ]
    found.sort(key=lambda each: each[:2], reverse=True)
    return [record for _, _, record in found[:ROLLOUTS]]
