"""Write the public table of attacks and kinds of grading: ``python -m tests.cheats.table --help``.

Every cell is one cheat of the suite, graded at the default level by one kind of grading. What was
found is kept in ``results.json``, so that the table can be made in parts: a run grades the cells
that are not there yet, with ``--anew`` all. ``--odd COUNT`` grades odd honest solutions. The page
``docs/security.md`` has the table between two comments, and a test holds both together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.local.backend import LocalBackend
from runners.tasks.contract import VerdictKind
from runners.tasks.grading import RolloutResult
from runners.tasks.grading.canaries.verification import Verification
from runners.tasks.grading.graders.task_grader import TaskGrader
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.repositories.task_repositories import use_repository_as_is
from tests.cheats.odd_solutions import grade_odd_solutions
from tests.cheats.project import make_patch, make_tasks
from tests.cheats.suite import AREAS, BY_CHANCE, PAID, PAID_BY, Cheat, load_cheats

KINDS = ("unittest", "pytest", "swebench", "swebench_pro", "eval_cmd", "f2p_script")
RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- tests.cheats.table -->", "<!-- end of the table -->"
SETTINGS = LocalSandboxConfig(
    kind="local", isolation="auto", memory_mb=1024, processes=64, file_mb=8, cpu_s=60, warm=0
)
HELD, ACCUSED, SOLVED, NONE = "held", "accused", "paid", "no grade"


@dataclass
class Results:
    """What was found; mutated by the functions that grade."""

    cheats: dict[str, dict[str, str]] = field(default_factory=dict)
    """Kind of grading → cheat → result."""
    odd: int = 0
    """Odd honest solutions that were graded."""
    unpaid: int = 0
    """Of these."""

    @classmethod
    def load(cls) -> Results:
        """Return what was found so far."""
        return cls(**json.loads(RESULTS.read_text("utf-8"))) if RESULTS.exists() else cls()

    def write(self) -> None:
        """Write what was found, sorted."""
        cheats = {kind: dict(sorted(found.items())) for kind, found in sorted(self.cheats.items())}
        text = json.dumps({**asdict(self), "cheats": cheats}, indent=1)
        RESULTS.write_text(f"{text}\n", "utf-8")

    @property
    def paid(self) -> list[tuple[str, str]]:
        """Kind and name of every cheat that was paid."""
        return [
            (kind, cheat)
            for kind, found in self.cheats.items()
            for cheat, result in found.items()
            if result == SOLVED
        ]

    @property
    def surprising(self) -> list[tuple[str, str]]:
        """The paid ones that are no documented special case, and none by chance."""
        return [cell for cell in self.paid if not expected_to_pay(*cell)]


def expected_to_pay(kind: str, cheat: str) -> bool:
    """Return whether a cheat is documented as paid: a special case, or one by chance."""
    return cheat in {*PAID, *BY_CHANCE} or (kind, cheat) in PAID_BY


def render(results: Results) -> str:
    """Return the table: held and all cheats by area and kind of grading."""
    lines = [
        f"| cheats held, of cheats graded | {' | '.join(f'`{kind}`' for kind in KINDS)} |",
        f"|---|{'---|' * len(KINDS)}",
    ]
    for area in [*sorted(AREAS), ""]:
        cells = []
        for kind in KINDS:
            found = [
                result
                for cheat, result in results.cheats.get(kind, {}).items()
                if cheat.startswith(f"{area}/") or not area
            ]
            held = sum(result in (HELD, ACCUSED) for result in found)
            cells.append(f"{held} of {len(found)}" if found else "–")
        lines.append(f"| {area.replace('_', ' ') or '**all**'} | {' | '.join(cells)} |")
    every = [result for found in results.cheats.values() for result in found.values()]
    special = ", ".join(f"`{name}`" for name in sorted({name for _, name in results.paid}))
    return "\n".join(
        [
            *lines,
            "",
            f"{len(every)} cells at the default level, of which {every.count(ACCUSED)} end in an "
            "accusation.",
            f"Paid, besides the special cases and chances below: **{len(results.surprising)}**.",
            f"Paid in some column: {special or 'none'}.",
            f"Of {results.odd} odd honest solutions (wrapped builtins, metaclasses, threads, "
            f"coroutines, …; by unittest), **{results.unpaid}** lost their reward.",
        ]
    )


def write_page(results: Results) -> None:
    """Replace the table in the page."""
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{render(results)}\n{END}{after}", "utf-8")


async def grade_cells(kinds: list[str], names: str, results: Results, until_s: float) -> None:
    """Grade cells that are not known yet, two at a time, for so long; keep each at once."""
    slots, end = asyncio.Semaphore(2), time.monotonic() + until_s
    with tempfile.TemporaryDirectory() as root:
        backend = LocalBackend(SETTINGS, Path(root) / "sandboxes")
        run_tests = SandboxGrader(backend)
        verification = Verification(run_tests, level=1)
        grader = TaskGrader(run_tests, use_repository_as_is, verification=verification)
        tasks = make_tasks(Path(root))

        async def grade(kind: str, cheat: Cheat) -> None:
            async with slots:
                if time.monotonic() > end or not (diff := cheat.make_diff(tasks[kind])):
                    return
                result = RolloutResult.of_patch(make_patch(diff))
                name = cheat.name.replace("/", "-")
                verdict = await grader.grade(tasks[kind], result, name=name, deadline_s=60)
            found = ACCUSED if verdict.tampered else HELD
            if verdict.kind is not VerdictKind.UNSOLVED:
                found = SOLVED if verdict.kind is VerdictKind.SOLVED else NONE
            results.cheats.setdefault(kind, {})[cheat.name] = found
            results.write()
            print(f"{kind:14} {cheat.name:40} {found:8} {verdict.reason[:80]}", flush=True)

        cells = [
            grade(kind, cheat)
            for kind in kinds
            for cheat in load_cheats()
            if names in cheat.name and cheat.name not in results.cheats.get(kind, {})
        ]
        try:
            await asyncio.gather(*cells)
        finally:
            await backend.close()


async def grade_odd(count: int, results: Results) -> None:
    """Grade odd honest solutions, and print what was not paid."""
    with tempfile.TemporaryDirectory() as root:
        backend = LocalBackend(SETTINGS, Path(root) / "sandboxes")
        try:
            task = make_tasks(Path(root))["unittest"]
            unpaid = await grade_odd_solutions(backend, task, count)
        finally:
            await backend.close()
    results.odd, results.unpaid = count, len(unpaid)
    results.write()
    for text, reason in unpaid:
        print(f"{text}\n# {reason}\n")


def main() -> None:
    """Grade what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--names", default="", help="a part of the names of the cheats to grade")
    parser.add_argument("--anew", action="store_true", help="grade known cells again")
    parser.add_argument("--odd", type=int, default=0, help="grade so many odd honest solutions")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    chosen = parser.parse_args()
    results = Results() if chosen.anew else Results.load()
    if chosen.odd:
        asyncio.run(grade_odd(chosen.odd, results))
    else:
        asyncio.run(grade_cells(chosen.kinds, chosen.names, results, chosen.minutes * 60))
    if chosen.write:
        write_page(results)
    print(render(results))


if __name__ == "__main__":
    main()
