"""Crash test: ``kill -9`` at random instants over small campaigns, each followed by a resume.

    python -m tests.benchmarks.bench_crash --kills 100 --campaigns 12 --parallel 2

A kill hits the driver, a service, or the whole process tree; half of the kills fall into starts and
resumes. At the end each campaign's store must hold the same work and content as that of an
undisturbed one, and nothing may be left on the machine. Exits with 1
if there is any difference.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.sandboxes.local.backend import SHARED_MEMORY
from runners.sandboxes.local.confinement import HIERARCHIES
from runners.system.processes.ledger import Ledger
from runners.system.processes.process_names import PREFIX, is_stale
from runners.system.processes.process_tags import SANDBOX_TAG, SERVICE_TAG
from tests.runners.campaigns.account import account, differences

CAMPAIGN = [
    *("run.steps=3", "run.tasks_per_step=2", "run.rollouts_per_task=2", "run.eval_tasks=4"),
    *("run.eval_every=2", "task.train_tasks=8", "task.held_out_tasks=4", "rollout.concurrency=4"),
    *("trainer.threads=1", "engine.threads=1", "observe.dashboard=off"),
]
TARGETS = {"driver": 10, "gateway": 3, "engine": 3, "tree": 4}
"""Target of a kill, with its frequency among twenty."""
MODULES = {"gateway": "runners.gateway", "engine": "runners.engines.embedded"}
EXECUTION_DEADLINE_S = 180.0
"""A driver that takes longer hangs."""
SETTLE_S = 20.0
"""Time for the services of a killed driver to end by their parent-death pipes."""


@dataclass
class Campaign:
    """One run directory and the executions of its driver; used by one thread."""

    folder: Path
    overrides: list[str]
    """``KEY=VALUE`` after ``CAMPAIGN``."""
    environment: dict[str, str]
    killed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kills by target and by what the run was doing."""
    faults: list[str] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        """Directory of the run."""
        return self.folder / "run"

    @contextlib.contextmanager
    def execution(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start the run, or resume it as a user would; its output goes to a file."""
        try:
            RunStore.open(self.run_dir, read_only=True).close()
            arguments = ["--resume", str(self.run_dir)]
        except StoreError:  # killed before there was a run
            arguments = [*CAMPAIGN, *self.overrides, f"run.dir={self.run_dir}"]
        with (self.folder / "output.txt").open("ab") as output:
            driver = subprocess.Popen(
                [sys.executable, "-m", "cli.main", "run", "--json", *arguments],
                stdout=output,
                stderr=output,
                env=self.environment,
                start_new_session=True,
            )
        try:
            yield driver
        finally:
            if driver.poll() is None:
                driver.kill()
            driver.wait()

    def finish(self) -> float:
        """Let the run finish; return the seconds that it took."""
        started = time.monotonic()
        with self.execution() as driver:
            self._expect_exit(driver, (0,))
        return time.monotonic() - started

    def kill(self, after_s: float, target: str, *, at_work: bool) -> bool:
        """Start, wait (``at_work``: from the first rollout on), kill; False if the run was over
        before that.
        """
        with self.execution() as driver:
            until = time.monotonic() + EXECUTION_DEADLINE_S
            while at_work and driver.poll() is None and not self._has_begun_rollouts(driver):
                if time.monotonic() > until:
                    break  # it hangs; the check of its exit reports where
                time.sleep(0.02)
            try:
                driver.wait(after_s)
                self._expect_exit(driver, (0,))
                return False
            except subprocess.TimeoutExpired:
                phase = self._phase()
                hit = kill_target(driver, target)
            self.killed[hit, phase] += 1
            # A run whose service was killed ends by itself; one that was done just then is done.
            self._expect_exit(driver, (4, 0) if hit in MODULES else (-signal.SIGKILL,))
        return True

    def _expect_exit(self, driver: subprocess.Popen[bytes], codes: tuple[int, ...]) -> None:
        try:
            code: int | str = driver.wait(EXECUTION_DEADLINE_S)
        except subprocess.TimeoutExpired:
            code = "hang"
        if code not in codes:
            end = (self.folder / "output.txt").read_text("utf-8", "replace")[-800:]
            self.faults.append(f"{self.folder.name}: a driver ended with {code}: {end}")

    def _has_begun_rollouts(self, driver: subprocess.Popen[bytes]) -> bool:
        """Return whether a rollout of this execution has begun."""
        try:
            with RunStore.open(self.run_dir, read_only=True) as store:
                entries = Ledger(store).entries()
        except StoreError:
            return False
        return any(e.kind == "session" and e.driver.pid == driver.pid for e in entries)

    def _phase(self) -> str:
        """Return the phase of the run, read from its store."""
        try:
            with RunStore.open(self.run_dir, read_only=True) as store:
                kinds = {entry.kind for entry in Ledger(store).entries()}
                rows = store.steps()
                living = store.state().driven
        except StoreError:
            return "before the store"
        if not living:
            return "starting"
        if not kinds & {"session", "sandbox"}:
            return "starting or between"
        return f"step {rows[-1].step}" if rows else "first evaluation"


def kill_target(driver: subprocess.Popen[bytes], target: str) -> str:
    """Kill a target, or the driver if there is no such service yet; return which it was."""
    try:
        children = psutil.Process(driver.pid).children(recursive=True)
    except psutil.Error:
        children = []
    if target in MODULES:
        for child in children:
            with contextlib.suppress(psutil.Error):
                if MODULES[target] in child.cmdline():
                    child.kill()
                    return target
    driver.kill()
    if target == "tree":
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        return target
    return "driver"


def find_leftovers(campaign: Campaign) -> list[str]:
    """Return files and processes that are left although the campaign is over."""
    until = time.monotonic() + SETTLE_S
    while (found := _list_leftovers(campaign)) and time.monotonic() < until:
        time.sleep(0.2)
    return found


def _list_leftovers(campaign: Campaign) -> list[str]:
    temporary = Path(campaign.environment["TMPDIR"])
    found = [
        f"temporary {path}"
        for path in temporary.iterdir()
        if not path.name.startswith("torchinductor_")  # torch's own, one per user
    ]
    unfinished = (".partial", ".tmp", "sandboxes")
    found += [
        f"in the run: {path.relative_to(campaign.run_dir)}"
        for path in campaign.run_dir.rglob("*")
        if path.name.endswith(unfinished) or path.name.startswith(".")
    ]
    for place in (SHARED_MEMORY, *map(Path, HIERARCHIES)):
        found += [f"stale {path}" for path in place.glob(f"{PREFIX}*") if is_stale(path.name)]
    mine = f"TMPDIR={temporary}".encode()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{process.pid}/environ").read_bytes()
            if mine in environment and (
                SERVICE_TAG.encode() in environment or SANDBOX_TAG.encode() in environment
            ):
                found.append(f"process {process.pid}")
    return found


def run_disturbed(
    folder: Path, overrides: list[str], cache: Path, kills: int, start_s: float, whole_s: float
) -> Campaign:
    """Run a campaign under ``kills`` kills to its end."""
    rng = random.Random(folder.name)
    campaign = prepare(folder, overrides, cache)
    for _ in range(kills):
        at_work = rng.random() < 0.5
        after_s = rng.uniform(0.0, whole_s - start_s if at_work else start_s)
        (target,) = rng.choices(list(TARGETS), list(TARGETS.values()))
        if not campaign.kill(after_s, target, at_work=at_work) or campaign.faults:
            break
    campaign.finish()
    return campaign


def prepare(folder: Path, overrides: list[str], cache: Path) -> Campaign:
    """Make the folder of a campaign, with a place for temporary files."""
    (folder / "tmp").mkdir(parents=True)
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "XDG_CACHE_HOME": str(cache)}
    return Campaign(folder, overrides, environment)


def main() -> None:
    """Measure, compare, print; exit with 1 on any difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--campaigns", type=int, default=12, help="the kills are spread over these")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="work in this directory and leave it there")
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE, as for agentrl run")
    options = parser.parse_args()
    with contextlib.ExitStack() as exits:
        folder = options.keep or Path(exits.enter_context(tempfile.TemporaryDirectory()))
        sys.exit(crash_test(folder.absolute(), options))


def crash_test(folder: Path, options: argparse.Namespace) -> int:
    """Run the undisturbed campaign, then disturbed ones until there were enough kills."""
    cache = folder / "cache"
    cache.mkdir()
    prepare(folder / "warm-up", options.overrides, cache).finish()  # makes the tasks
    reference = prepare(folder / "reference", options.overrides, cache)
    began = time.time()
    whole_s = reference.finish()
    if reference.faults:
        raise SystemExit(f"the undisturbed run failed: {reference.faults}")
    with RunStore.open(reference.run_dir, read_only=True) as store:
        start_s = store.query("SELECT min(created_at) FROM session")[0][0] - began
        wanted = account(store)
    faults: list[str] = []
    share = -(-options.kills // options.campaigns)
    started, done, number = time.monotonic(), list[Campaign](), 0
    kills: Counter[tuple[str, str]] = Counter()
    with ThreadPoolExecutor(options.parallel) as pool:
        while kills.total() < options.kills and not faults:
            names = [f"seed-{options.seed}-{number + i}" for i in range(options.parallel)]
            number += options.parallel
            missing = options.kills - kills.total()
            each = min(share, -(-missing // options.parallel))
            round_ = [
                pool.submit(
                    run_disturbed, folder / name, options.overrides, cache, each, start_s, whole_s
                )
                for name in names
            ]
            for future in round_:
                campaign = future.result()
                done.append(campaign)
                kills += campaign.killed
                faults += find_differences(campaign, wanted)
    faults += [f"in the cache: {path}" for path in (cache / "agentrl").glob("*/.*")]
    report(kills, len(done), start_s, whole_s, time.monotonic() - started, faults)
    return 1 if faults else 0


def find_differences(campaign: Campaign, wanted: dict[str, Any]) -> list[str]:
    """Return the differences of a finished campaign from the undisturbed one, and its leftovers."""
    found = list(campaign.faults)
    try:
        with RunStore.open(campaign.run_dir, read_only=True) as store:
            found += differences(wanted, account(store))
            found += [f"in the ledger: {e.kind} {e.name}" for e in Ledger(store).entries()]
    except StoreError as error:
        found.append(str(error))
    return [f"{campaign.folder.name}: {fault}" for fault in [*found, *find_leftovers(campaign)]]


def report(
    kills: Counter[tuple[str, str]],
    campaigns: int,
    start_s: float,
    whole_s: float,
    wall_s: float,
    faults: list[str],
) -> None:
    """Print the result for humans and as one JSON line."""
    phases = sorted({phase for _, phase in kills})
    table = Table(title=f"kill -9, {kills.total()} times over {campaigns} campaigns")
    table.add_column("killed while")
    for target in TARGETS:
        table.add_column(target, justify="right")
    for phase in phases:
        table.add_row(phase, *(str(kills[target, phase]) for target in TARGETS))
    console = Console(stderr=True)
    console.print(table)
    console.print(
        f"an undisturbed run takes {whole_s:.1f} s, {start_s:.1f} s of it until the first rollout"
    )
    for fault in faults:
        console.print(f"[red]different:[/] {fault}", highlight=False)
    if not faults:
        console.print("every store equals the undisturbed one; nothing is left")
    document = {
        "benchmark": "crash",
        "kills": kills.total(),
        "by_target": {t: sum(n for (hit, _), n in kills.items() if hit == t) for t in TARGETS},
        "campaigns": campaigns,
        "start_s": round(start_s, 1),
        "undisturbed_s": round(whole_s, 1),
        "wall_s": round(wall_s, 1),
        "differences": faults,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
