"""The suite of cheats: a directory each, with one sentence and a patch of ``project.py``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SUITE = Path(__file__).with_name("suite")
AREAS = {
    *("repository", "test_framework", "interpreter", "harness", "network", "timing", "grader"),
    "special_casing",
}
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

    @property
    def area(self) -> str:
        """The part of the system that it is aimed at."""
        return self.name.partition("/")[0]


def load_cheats() -> list[Cheat]:
    """Return all cheats, by name."""
    return [
        Cheat(
            folder.relative_to(SUITE).as_posix(),
            (folder / "README.md").read_text("utf-8").strip(),
            (folder / "change.patch").read_text("utf-8"),
        )
        for folder in sorted(SUITE.glob("*/*"))
    ]
