"""Measure what clocks tell code under test about the run that it is in.

    python -m tests.benchmarks.bench_canary_timing --gradings 100

A right solution notes what it can measure when it is imported: seconds since its process and the
first one of its sandbox began, page faults, and the times to read the tests, a file of the sandbox
and one of the host. Printed are, for each pair of sorts of runs, the best rule with one threshold
and its rate of right answers on the half of the runs on which it was not chosen; 0.5 is a guess.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.contract import Sandbox, SandboxBackend, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.wrappers import ForwardingSandbox
from runners.tasks.contract import VerdictKind
from runners.tasks.grading import RolloutResult
from runners.tasks.grading.canaries.verification import Verification
from runners.tasks.grading.graders.task_grader import TaskGrader
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.repositories.task_repositories import use_repository_as_is
from tests.cheats.project import edit, make_patch, make_tasks

CLOCK = """
import glob, json, os, resource, time

def _age(process):
    with open(f"/proc/{process}/stat") as file:
        began = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")

def _read(path):
    started = time.perf_counter()
    with open(path, "rb") as file:
        file.read()
    return time.perf_counter() - started

if not os.path.exists("clock.json"):
    _use = resource.getrusage(resource.RUSAGE_SELF)
    _seen = {
        "age of the process": _age("self"), "age of the sandbox": _age(1),
        "CPU time": time.process_time(), "minor faults": _use.ru_minflt,
        "major faults": _use.ru_majflt, "reading the tests": _read("tests/test_price.py"),
        "reading the sandbox": _read("README.md"), "reading the host": _read(os.__file__),
    }
    with open("clock.json", "w") as _file:
        json.dump(_seen, _file)
"""
Runs = dict[str, list[dict[str, float]]]
"""Sort of run (real, negated, reworded) → what each run measured."""


@dataclass
class Reader(ForwardingSandbox):
    """A sandbox whose measurements are read before it is closed."""

    real: Any
    found: list[dict[str, float]]

    def __post_init__(self) -> None:
        super().__init__(self.real)

    async def close(self) -> None:
        """Read, and close."""
        file = self.real.workspace / "clock.json"
        if file.exists():
            self.found.append(json.loads(file.read_text()))
        await self.real.close()


@dataclass
class ReadingBackend:
    """Makes such sandboxes."""

    real: LocalBackend
    runs: Runs = field(default_factory=lambda: {"real": [], "negated": [], "reworded": []})

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make one, by the sort of its run."""
        sort = "reworded" if "-reworded" in spec.purpose else "real"
        sort = "negated" if "-canary-" in spec.purpose else sort
        return cast(Sandbox, Reader(await self.real.create(spec), self.runs[sort]))


async def measure(kind: str, gradings: int) -> Runs:
    """Return what right solutions of a task measured in their runs."""
    settings = LocalSandboxConfig(
        kind="local", isolation="auto", memory_mb=1024, processes=64, file_mb=8, cpu_s=60, warm=0
    )
    right = "return sum(prices) * (100 - discount) // 100"
    with tempfile.TemporaryDirectory() as root:
        local = LocalBackend(settings, Path(root) / "sandboxes")
        backend = ReadingBackend(local)
        run_tests = SandboxGrader(cast(SandboxBackend, backend))
        grader = TaskGrader(
            run_tests, use_repository_as_is, verification=Verification(run_tests, level=1)
        )
        task = make_tasks(Path(root))[kind]
        for number in range(gradings):
            text = f"{CLOCK}# {number}\n"
            diff = edit(
                Path(),
                lambda old, text=text: old.replace("return sum(prices) - discount", right) + text,  # type: ignore[misc]
            )
            result = RolloutResult.of_patch(make_patch(diff))
            verdict = await grader.grade(task, result, name=f"g{number}", deadline_s=120)
            if verdict.kind is not VerdictKind.SOLVED:
                print(f"grading {number}: {verdict.reason}")
        await local.close()
    return backend.runs


def rate(one: list[float], other: list[float], threshold: float) -> float:
    """Return the balanced rate of right answers of "the other sort has larger values"."""
    low = sum(value <= threshold for value in one) / len(one)
    high = sum(value > threshold for value in other) / len(other)
    return (low + high) / 2


def best_rule(one: list[dict[str, float]], other: list[dict[str, float]]) -> tuple[str, float]:
    """Return the best rule of every second run, and its rate on the others."""
    best = ("", 0.0, 0.0, False)
    for name in one[0]:
        a, b = ([run[name] for run in runs[::2]] for runs in (one, other))
        for threshold in sorted({*a, *b}):
            for swapped in (False, True):
                found = rate(*((b, a) if swapped else (a, b)), threshold)
                if found > best[1]:
                    best = (name, found, threshold, swapped)
    name, _, threshold, swapped = best
    a, b = ([run[name] for run in runs[1::2]] for runs in (one, other))
    return name, rate(*((b, a) if swapped else (a, b)), threshold)


def main() -> None:
    """Measure, and print the best rules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gradings", type=int, default=100)
    parser.add_argument("--kinds", nargs="*", default=["unittest", "f2p_script"])
    chosen = parser.parse_args()
    for kind in chosen.kinds:
        runs = asyncio.run(measure(kind, chosen.gradings))
        for one, other in itertools.combinations([sort for sort in runs if runs[sort]], 2):
            name, right = best_rule(runs[one], runs[other])
            counts = f"{len(runs[one])} and {len(runs[other])} runs"
            print(f"{kind}: {one} or {other}: {right:.2f} by {name} ({counts})", flush=True)


if __name__ == "__main__":
    main()
