"""Print what the house costs beside its budget: lines per folder, keys, options, seconds of tests.

    python -m tests.budgets            # what rises is marked
    python -m tests.budgets --write    # the figures of today become the budget

The budget is ``tests/budgets.json``. A change that raises a figure writes it anew, and its commit
says why. Seconds are the CPU time of a suite's last run here (``tests/conftest.py`` keeps it).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from typer.core import TyperGroup
from typer.main import get_command

ROOT = Path(__file__).parents[1]
BUDGETS = Path(__file__).with_suffix(".json")
PACKAGES = ("cli", "conf", "launch", "runners")
CACHE = ROOT / ".pytest_cache" / "v" / "agentrl"
"""Where ``tests/conftest.py`` leaves what a run of the tests took and which it ran again."""
NOISE = 0.1
"""Part by which seconds differ between runs of the same tests."""


def count_lines(root: Path = ROOT) -> dict[str, int]:
    """Return the lines of Python by folder, those of ``runners/`` by district, and in all."""
    lines = Counter[str]()
    for file in _python_files(root):
        place = file.relative_to(root)
        depth = 2 if place.parts[0] in ("runners", "tests") else 1
        folder = "/".join(place.parent.parts[:depth])
        number = len(file.read_text("utf-8").splitlines())
        lines[f"lines {folder}"] += number
        lines["lines of tests" if place.parts[0] == "tests" else "lines of source"] += number
    lines["lines of YAML"] = sum(
        len(file.read_text("utf-8").splitlines()) for file in (root / "conf").rglob("*.yaml")
    )
    return dict(sorted(lines.items()))


def _python_files(root: Path) -> Iterator[Path]:
    for top in (*PACKAGES, "tests"):
        yield from (root / top).rglob("*.py")


def count_options() -> int:
    """Return the number of options of all commands."""

    def of(command: object) -> int:
        parameters = getattr(command, "params", ())
        own = sum(any(o.startswith("--") for o in p.opts) for p in parameters)
        return own + sum(map(of, getattr(command, "commands", {}).values()))

    from cli.app import app

    command = get_command(app)
    assert isinstance(command, TyperGroup)
    return of(command)


def measure() -> dict[str, int]:
    """Return every figure that is known here by its name."""
    from conf.key_reference import list_keys

    figures = count_lines()
    figures["keys"] = len({entry.key for entry in list_keys()})
    figures["options"] = count_options()
    for suite, seconds in read_kept("seconds").items():
        figures[f"seconds of {suite} tests"] = round(seconds)
    return figures


def read_kept(name: str) -> dict[str, float]:
    """Return what the last runs of the tests have left under a name, by suite."""
    files = sorted((CACHE / name).glob("*")) if (CACHE / name).is_dir() else []
    return {file.name: json.loads(file.read_text("utf-8")) for file in files}


def compare(figures: Mapping[str, int], budget: Mapping[str, int]) -> list[str]:
    """Return the lines of the table; a figure above its budget says by how much."""
    lines = []
    for name in sorted({*figures, *budget}, key=lambda name: (name.count("/"), name)):
        now, limit = figures.get(name), budget.get(name)
        margin = (limit or 0) * NOISE if name.startswith("seconds") else 0
        rise = ""
        if now is not None and now > (limit or 0) + margin:
            rise = f"  rises by {now - (limit or 0)}"
        shown = ("-" if number is None else f"{number}" for number in (now, limit))
        lines.append("{:32}{:>9}{:>9}".format(name, *shown) + rise)
    return lines


def main() -> None:
    """Print the table, or write the budget."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="make today's figures the budget")
    write = parser.parse_args().write
    budget: dict[str, int] = json.loads(BUDGETS.read_text("utf-8")) if BUDGETS.exists() else {}
    figures = measure()
    if write:
        seconds = {name: kept for name, kept in budget.items() if name.startswith("seconds")}
        BUDGETS.write_text(json.dumps(seconds | figures, indent=1, sort_keys=True) + "\n", "utf-8")
        return
    print("{:32}{:>9}{:>9}".format("", "now", "budget"))
    print("\n".join(compare(figures, budget)))


if __name__ == "__main__":
    main()
