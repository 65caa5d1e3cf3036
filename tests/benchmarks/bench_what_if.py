"""Other rules over the stored rollouts of a run: CPU seconds of each question.

    python -m tests.benchmarks.bench_what_if

Rollouts have four turns each on average, with sub-agents and summaries, of 400 tokens of prompt
and 400 sampled ones a turn. A question reads the run, computes every step under its own rules and
under the others, and compares both with what is stored. ``command`` is the whole of ``agentrl
what-if``: Python's start, imports and the table are in it.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from runners.campaigns.what_if.what_if import ask_what_if
from tests.fakes.trained_run import train_run

QUESTIONS = (
    "",
    "fanout=collapse",
    "fanout.reward=token_share",
    "trainer.advantage=rloo",
    "trainer.advantage=reinforce_pp_baseline",
    "reward.turn_penalty=0.1",
    "trainer.advantage=rloo reward.turn_penalty=0.1 fanout=collapse",
)
GROUPS, MEMBERS = 8, 8


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=16, help="64 rollouts each")
    steps = parser.parse_args().steps
    table = Table(title=f"what if, {steps * GROUPS * MEMBERS:,} rollouts", title_justify="left")
    for column in ("KEY=VALUE", "CPU seconds", "command", "not reproduced"):
        table.add_column(column, justify="left" if column == "KEY=VALUE" else "right")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train_run(
            run, ["scenario=mixed"], steps=steps, groups=GROUPS, members=MEMBERS, tokens=400
        ).close()
        ask_what_if(run, [])  # imports, the YAML files
        for question in QUESTIONS:
            best = min(_measure(run, question) for _ in range(3))
            lost = len(ask_what_if(run, question.split()).not_reproduced)
            whole = min(_measure_command(run, question) for _ in range(3))
            table.add_row(question or "(the run's own)", f"{best:.2f}", f"{whole:.2f}", str(lost))
    Console().print(table)


def _measure(run: Path, question: str) -> float:
    started = time.process_time()
    ask_what_if(run, question.split())
    return time.process_time() - started


def _measure_command(run: Path, question: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "cli.main", "what-if", str(run), *question.split()]
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
