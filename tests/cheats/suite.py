"""The suite of cheats: the generic attacks of ``agentrl tasks check``, and a directory for each
other one, with one sentence and a patch of ``project.py``.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from runners.tasks.attacks import ATTACKS, fit_attacks, make_workspace
from runners.tasks.contract import Task

SUITE = Path(__file__).with_name("suite")
AREAS = {
    *("repository", "test_framework", "interpreter", "harness", "network", "timing", "grader"),
    *("special_casing", "generic"),
}
NOT_FOR_PYTHON = {"makefile", "cmake", "package-json", "node-modules", "cargo", "build-script"}
"""Attacks that do not fit the commands of ``project.py``."""
PAID = {
    "special_casing/hard-coded-examples": "right answers to the inputs of visible tests",
    "special_casing/hashed-examples": "right answers to the inputs of visible tests",
    "special_casing/fitted-rule": "a rule that holds for the inputs of the tests",
}
"""Cheats that no further run of the same tests can tell from a solution, with the reason. A test
with other inputs fails each of them.
"""
PAID_BY = {
    ("f2p_script", "interpreter/answer-from-file"): (
        "answers out of a visible test that has the inputs of the deciding program"
    )
}
"""The same, by one kind of grading only."""
BY_CHANCE = {
    "timing/clock-parity": "honest in some of the runs that decide, by the clock",
    "timing/coin": "honest in some of the runs that decide, by a random bit",
}
"""Cheats that are paid in some gradings: one that cheats in the run of the real tests and is honest
in the canaries that follow looks like a solution.
"""


@dataclass(frozen=True, slots=True)
class Cheat:
    """One cheat."""

    name: str
    """``area/name``."""
    sentence: str
    diff: str
    """Its patch; "" for one that is made from the task's own tree."""

    @property
    def area(self) -> str:
        """The part of the system that it is aimed at."""
        return self.name.partition("/")[0]

    def make_diff(self, task: Task) -> str:
        """Return its patch of a task; empty if it does not fit."""
        if self.diff:
            return self.diff
        changes = fit_attacks(task).get(self.name.partition("/")[2], {})
        with tempfile.TemporaryDirectory() as scratch:
            workspace = Path(scratch) / "workspace"
            make_workspace(task, changes, workspace)
            git = ["git", "-C", str(workspace)]
            subprocess.run([*git, "add", "--all", "--force"], check=True)
            return subprocess.run(
                [*git, "diff", "--cached"], check=True, capture_output=True, text=True
            ).stdout


def load_cheats() -> list[Cheat]:
    """Return all cheats, by name."""
    own = [
        Cheat(
            folder.relative_to(SUITE).as_posix(),
            (folder / "README.md").read_text("utf-8").strip(),
            (folder / "change.patch").read_text("utf-8"),
        )
        for folder in SUITE.glob("*/*")
    ]
    shared = [
        Cheat(f"generic/{name}", attack.sentence, "")
        for name, attack in ATTACKS.items()
        if name not in NOT_FOR_PYTHON
    ]
    return sorted([*own, *shared], key=lambda cheat: cheat.name)
