"""List the benchmarks, run them, and write the second half of docs/figures.md: their outputs.

    python -m tests.benchmarks                       # lists them
    python -m tests.benchmarks run growth gateway    # or no name: all, some hours
    python -m tests.benchmarks page                  # writes the page again

An output is kept under docs/performance/ with its date, load and machine; the page has the newest
of each. Nothing else should run on the machine: the load that is printed tells.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.catalogue import BENCHMARKS, Benchmark

DOCS = Path(__file__).parents[2] / "docs"
OUTPUTS = DOCS / "performance"
PAGE = DOCS / "figures.md"
PLOTS = {"growth": "growth.png"}

HEAD = """## Performance

Written by `python -m tests.benchmarks`: the newest output of each benchmark as it was printed,
with its command. Compare figures within one output only; a load above the number of CPUs says
that other work ran beside it, so that times by the clock are longer than on an idle machine.
[Benchmarks](#benchmarks) sums up what was found, also on other days.
"""

MEASURED = ("| benchmark | measures | baseline | limit |", "|---|---|---|---|")
MISSING = ("| benchmark | measures | command |", "|---|---|---|")
NOT_MEASURED = """### No output kept

`python -m tests.benchmarks run NAME` adds one. [Benchmarks](#benchmarks) has figures of most, of
other days.
"""


def output_file(benchmark: Benchmark) -> Path:
    """Return where the output of a benchmark is kept."""
    return OUTPUTS / f"{benchmark.name}.txt"


def show() -> None:
    """Print the list."""
    table = Table(title_justify="left")
    for column in ("name", "minutes", "measured", "measures"):
        table.add_column(column, justify="right" if column == "minutes" else "left")
    for each in BENCHMARKS:
        kept = output_file(each)
        measured = kept.read_text("utf-8")[:10] if kept.exists() else "-"
        table.add_row(each.name, f"{each.minutes:g}", measured, each.measures)
    Console().print(table)


def run(benchmark: Benchmark) -> int:
    """Run a benchmark, with its output on the terminal, and keep the output if it succeeds."""
    module, *arguments = shlex.split(benchmark.command)
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *arguments]
    print(f"== python -m tests.benchmarks.{benchmark.command}", flush=True)
    OUTPUTS.mkdir(exist_ok=True)
    loads, lines = [os.getloadavg()[0]], list[str]()
    environment = {**os.environ, "COLUMNS": "150"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=DOCS.parent
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    loads.append(os.getloadavg()[0])
    if process.returncode:
        print(f"exit code {process.returncode}: not kept", file=sys.stderr)
        return process.returncode
    about = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    load = f"load {loads[0]:.1f} before, {loads[1]:.1f} after"
    head = f"{time.strftime('%Y-%m-%d')}, {about}, {load}"
    output_file(benchmark).write_text("\n".join([head, *lines]).rstrip() + "\n", "utf-8")
    return 0


def write_page() -> None:
    """Write the part of the page about kept outputs, and list the benchmarks that have none."""
    kept = [each for each in BENCHMARKS if output_file(each).exists()]
    rows = [
        f"| [{each.name}](#{each.name}) | {each.measures} | {each.baseline} | {each.limit} |"
        for each in kept
    ]
    parts = [HEAD, "\n".join([*MEASURED, *rows])]
    parts += [_section(each) for each in kept]
    parts.append(NOT_MEASURED)
    rows = [
        f"| {each.name} | {each.measures} | `python -m tests.benchmarks.{each.command}` |"
        for each in BENCHMARKS
        if each not in kept
    ]
    parts.append("\n".join([*MISSING, *rows]))
    before = PAGE.read_text("utf-8").partition(HEAD.partition("\n")[0] + "\n")[0]
    written = "\n\n".join(part.rstrip("\n") for part in parts)
    PAGE.write_text(f"{before}{written}\n", "utf-8")


def _section(benchmark: Benchmark) -> str:
    """Return what is known of a benchmark."""
    head, *printed = output_file(benchmark).read_text("utf-8").splitlines()
    # A line of JSON repeats the table above it.
    output = "\n".join(line for line in printed if not line.startswith("{"))
    parts = [
        f"### {benchmark.name}",
        f"{benchmark.measures[0].upper()}{benchmark.measures[1:]}. {head}.",
        f"`python -m tests.benchmarks.{benchmark.command}`",
        f"```text\n{output.rstrip()}\n```",
    ]
    if (plot := PLOTS.get(benchmark.name)) and (OUTPUTS / plot).exists():
        parts.append(f"![{benchmark.name}](performance/{plot})")
    return "\n\n".join(parts)


def main() -> int:
    """Do what is asked; return the exit code: 1 if a benchmark failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="do")
    wanted = commands.add_parser("run", help="run benchmarks, and write the page")
    names = {each.name: each for each in BENCHMARKS}
    wanted.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    commands.add_parser("page", help="write the page")
    arguments = parser.parse_args()
    if unknown := set(vars(arguments).get("names", ())) - names.keys():
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    if arguments.do is None:
        show()
        return 0
    failed = 0
    for name in (arguments.names or names) if arguments.do == "run" else ():
        failed += run(names[name]) != 0
        write_page()
    if arguments.do == "page":
        write_page()
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
