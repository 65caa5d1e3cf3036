"""Print the table of docs/agents.md: real agent programs in the sandbox, with a scripted policy.

    python -m tests.programs              # every row, in the versions of the presets
    python -m tests.programs pi codex-0.1 # the rows that begin so
    python -m tests.programs pi --write   # they become those of docs/agents.md, with the date
    python -m tests.programs --newest     # the newest versions of npm and PyPI, if others

``--newest`` says what differs from the table in docs/agents.md. Its exit code is 0 also if a new
version breaks a promise, or a registry does not answer: presets name their versions, so that what
users have is as it was. Otherwise it is 1 if a row breaks a promise.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from conf.compose import compose
from conf.sections.harness import CommandHarnessConfig
from runners.rollouts.harnesses.installation import ProgramError
from runners.sandboxes.backends import make_backend
from tests.runners.rollouts.harnesses.program_table import CASES, COLUMNS, HEAD, Case, Row, try_case

PAGE = Path(__file__).parents[1] / "docs" / "agents.md"
PACKAGES = {
    "claude_code": ("npm", "@anthropic-ai/claude-code"),
    "codex": ("npm", "@openai/codex"),
    "mini_swe_agent": ("pip", "mini-swe-agent"),
}
"""Packages of the programs whose presets have no command that installs them."""
_INSTALLS = re.compile(r"\b(npm|pip) install (?:--\S+ )*(\S+?)(?:@|==)\d")
_NEWEST = re.compile(r"(?:\S+ \()?(\d+(?:\.\d+)+[\w.+-]*)\)?\s*$", re.MULTILINE)
"""On npm's only line, or on pip's first, in which the package's name precedes it."""
_TABLE = re.compile(r"(?m)^\| program \| version \|.*\n(\|.*\n)+")
_DATE = re.compile(r"on \d+ [A-Z][a-z]+ \d{4}")
REGISTRY_S = 60.0


class RegistryError(Exception):
    """A registry does not answer, or does not know the package."""


def find_package(program: str) -> tuple[str, str]:
    """Return the installer of a program's preset, and the package."""
    if program in PACKAGES:
        return PACKAGES[program]
    harness = compose([f"harness={program}"]).harness
    assert isinstance(harness, CommandHarnessConfig)
    found = _INSTALLS.search(harness.install or "")
    assert found is not None, harness.install
    return found[1], found[2]


def ask_registry(installer: str, package: str) -> str:
    """Return the newest version of a package; raises RegistryError."""
    argv = ["npm", "view", package, "version"]
    if installer == "pip":
        options = ("--only-binary=:all:", "--python-version=3.12")
        argv = [sys.executable, "-m", "pip", "index", "versions", *options, package]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=REGISTRY_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        raise RegistryError(f"{installer} does not answer for {package}: {said}") from error
    return read_newest(done.stdout)


def read_newest(printed: str) -> str:
    """Return the version that npm or pip names first; raises RegistryError if they name none."""
    found = _NEWEST.match(printed)
    if found is None:
        raise RegistryError(f"no version in {printed[:80]!r}")
    return found[1]


def look_up(program: str) -> str:
    """Return the newest version of a program, "" where its registry does not answer."""
    try:
        return ask_registry(*find_package(program))
    except RegistryError as error:
        print(f"{program}: not looked up: {error}", flush=True)
        return ""


def newest_cases(cases: Sequence[Case], newest_of: Callable[[str], str]) -> Iterator[Case]:
    """Yield the cases of presets of which there is another version, in that version."""
    versions: dict[str, str] = {}
    for case in cases:
        preset = f"harness={case.program}"
        if case.package or case.lines[0].partition("@")[0] != preset:
            continue
        if case.program not in versions:
            versions[case.program] = newest_of(case.program)
        newest = versions[case.program]
        known = {each.version for each in cases if each.program == case.program}
        if newest and newest not in known and case.version == max(known, key=_numbers):
            yield replace(case, lines=(f"{preset}@{newest}", *case.lines[1:]))


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


async def try_cases(cases: Sequence[Case]) -> list[Row]:
    """Run the cases one after the other and print their rows; those that cannot be installed are
    left out.
    """
    rows = []
    with tempfile.TemporaryDirectory() as place:
        backend = make_backend(compose(["harness=pi"]).sandbox, Path(place) / "root")
        print(HEAD, flush=True)
        for number, case in enumerate(cases):
            work = Path(place) / str(number)
            work.mkdir()
            try:
                row = await try_case(case, backend, work)
            except ProgramError as error:
                print(f"{case}: cannot be installed: {error}", flush=True)
                continue
            rows.append(row)
            print("\n".join([str(row), *row.problems]), flush=True)
        await backend.close()
    return rows


def describe_changes(row: Row, page: str) -> str:
    """Return what differs from the row of the page, in one line."""
    table = _TABLE.search(page)
    written = map(_cells, table[0].splitlines() if table else [])
    cells, case = row.cells(), row.case
    same = [each for each in written if (each[0], each[2]) == (case.program, case.scenario)]
    if not same:
        return f"{case}: is not in the table"
    last = same[-1]
    changes = [
        f"{name} {before} → {after}"
        for name, before, after in zip(COLUMNS, last, cells, strict=False)
        if before != after
    ]
    kept = "; ".join(row.problems) or "every promise holds"
    return f"{case}: {', '.join(changes) or 'nothing'}; {kept}"


def write_rows(rows: Sequence[Row], page: str) -> str:
    """Return the page with these rows, the others as they were, and today's date."""
    table = _TABLE.search(page)
    lines = {tuple(_cells(line)[:3]): line for line in (table[0].splitlines() if table else [])}
    lines |= {row.cells()[:3]: str(row) for row in rows}
    named = [(case.program, case.version, case.scenario) for case in CASES]
    written = "\n".join([HEAD, *(lines[name] for name in named if name in lines)]) + "\n"
    today = f"on {datetime.now(UTC):%-d %B %Y}"
    return _DATE.sub(today, _TABLE.sub(lambda _: written, page, count=1), count=1)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help="PROGRAM-VERSION-SCENARIO, or how it begins")
    parser.add_argument("--newest", action="store_true", help="the registries' newest versions")
    parser.add_argument("--write", action="store_true", help="write the rows into docs/agents.md")
    asked = parser.parse_args()
    cases = [case for case in CASES if str(case).startswith(tuple(asked.rows or [""]))]
    if asked.newest:
        rows = asyncio.run(try_cases(list(newest_cases(cases, look_up))))
        print("\n".join(describe_changes(row, PAGE.read_text()) for row in rows))
        return 0
    rows = asyncio.run(try_cases(cases))
    if asked.write:
        PAGE.write_text(write_rows(rows, PAGE.read_text()))
    return int(len(rows) < len(cases) or any(row.problems for row in rows))


if __name__ == "__main__":
    sys.exit(main())
