"""``agentrl show --matrix``: the deciding numbers of every agent program, model and launcher."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from cli.invocation import print_json, stderr, stdout

if TYPE_CHECKING:
    from conf.defaults_table import Combination

_HEAD = ["harness", "model", "launch", "window", "tokens per turn", "turns", "deadline", "reward"]


def show_matrix(overrides: list[str], *, as_json: bool) -> None:
    """Print the numbers of the combinations that ``overrides`` leave (harness=a,b takes two).

    Raises ConfigError if an override names no choice.
    """
    from conf.defaults_table import AXES, find_combinations, list_axis
    from conf.errors import ConfigError
    from conf.keys import groups, unknown_choice

    only: dict[str, list[str]] = {}
    rest: list[str] = []
    for line in overrides:
        axis, _, choices = line.partition("=")
        if axis not in AXES:
            rest.append(line)
            continue
        only[axis] = choices.split(",")
        if unknown := [each for each in only[axis] if each not in groups()[axis]]:
            raise ConfigError([unknown_choice(axis, each) for each in unknown])
    total = 1
    for axis in AXES:
        total *= len(only.get(axis) or list_axis(axis))
    found: list[Combination] = []
    with stderr().status("") as status:
        for combination in find_combinations(only, rest):
            found.append(combination)
            status.update(f"{len(found)} of {total} combinations")
    if as_json:
        print_json({"combinations": [asdict(each) for each in found]})
    else:
        _print_table(found)


def _print_table(found: list[Combination]) -> None:
    """Print one line per combination; launchers with the same numbers share a line."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for each in found:
        numbers = (
            each.numbers.describe().values() if each.numbers else [f"refused: {each.refused[0]}"]
        )
        rows.setdefault((each.harness, each.model, *numbers), []).append(each.launch)
    lines = [_HEAD] + [
        [harness, model, " ".join(launchers), *numbers]
        for (harness, model, *numbers), launchers in rows.items()
    ]
    numbered = [line for line in lines if len(line) == len(_HEAD)]
    widths = [max(map(len, column)) for column in zip(*numbered, strict=True)]
    for line in lines:
        padded = [f"{cell:{width}}" for cell, width in zip(line, widths, strict=False)]
        stdout().print("  ".join(padded).rstrip(), soft_wrap=True)
