"""The deciding numbers of every combination of agent program, model and launcher."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from conf.compose import compose
from conf.errors import ConfigError
from conf.keys import choice_content, groups
from conf.plan_numbers import KeyNumbers, find_key_numbers, find_short_window

AXES = ("harness", "model", "launch")
_PLACES = {
    "ssh": ["launch.hosts_file=hosts"],
    "slurm": [],
    "ray": ["launch.head=head"],
    "kubernetes": ["launch.image=image", "launch.claim=claim"],
}
"""Keys without a default, which do not change the numbers."""


@dataclass(frozen=True, slots=True)
class Combination:
    """One combination and its numbers."""

    harness: str
    model: str
    launch: str
    numbers: KeyNumbers | None
    """None if it is refused."""
    refused: tuple[str, ...] = ()
    """Faults of a combination that cannot work."""


def find_combinations(
    only: Mapping[str, Sequence[str]], overrides: Sequence[str] = ()
) -> Iterator[Combination]:
    """Yield every combination with its numbers; ``only`` has the choices of an axis that has less
    than all.

    ``overrides`` hold for all of them. Keys without a default get a placeholder.
    """
    axes = [only.get(axis) or list_axis(axis) for axis in AXES]
    for harness, model, launch in itertools.product(*axes):
        lines = [f"harness={harness}", f"model={model}", *_fill(model, launch), *overrides]
        if harness == "custom" and not any(line.startswith("harness.target") for line in lines):
            lines.append("harness.target=package.module:Name")
        if harness == "command" and not any(line.startswith("harness.run=") for line in lines):
            lines.append("harness.run=agent")
        try:
            config = compose(lines)
        except ConfigError as error:
            yield Combination(harness, model, launch, None, tuple(error.faults))
        else:
            fault = find_short_window(config)
            numbers = None if fault else find_key_numbers(config)
            yield Combination(harness, model, launch, numbers, (fault,) if fault else ())


def list_axis(axis: str) -> tuple[str, ...]:
    """Return the choices of an axis; the programs of ``harness=command`` have its numbers."""
    return tuple(
        name
        for name in groups()[axis]
        if name == "command" or choice_content(axis, name)["kind"] != "command"
    )


def _fill(model: str, launch: str) -> Iterator[str]:
    """Yield the rest of a configuration with this model and launcher."""
    if launch != "local":
        yield from (f"launch={launch}", "launch.shared_dir=shared", *_PLACES[launch])
        yield "trainer=slime"
    if model == "tiny" and launch == "local":
        return  # the laptop campaign: its own engine, its own tasks
    yield from ("task=jsonl", "task.path=tasks.jsonl")
    if model == "endpoint":  # it can be evaluated only
        yield from ("engine=openai", "engine.url=https://api.example.com", "engine.model=name")
        yield "run.steps=0"
        return
    if model != "tiny":
        yield "model.path=weights"
    if model == "local":
        yield "model.tokenizer=weights"
    if model in {"local", "checkpoint"}:
        yield "model.renderer=qwen3"
    if launch == "local":
        yield from ("engine=sglang", "engine.url=http://127.0.0.1:30000")
