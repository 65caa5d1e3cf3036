"""Random walks: programs of random steps, shrunk by hypothesis to the shortest that fails.

A failure is a scenario of at most ten lines, which ``--scenarios FILE`` runs again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from agentrl.referee.conversation import RefereeError
from agentrl.referee.program import WALK, Scenario
from agentrl.referee.trial import Cell, Trial

MOST_STEPS = 7
"""With its head, its first message and its last turn a failure has ten lines."""
STEPS = (
    "go_on(); work()",
    'go_on(); work(text="I look.")',
    'go_on(); work(thought="Hm.", stream=True)',
    'go_on(); work(1, call("Read", path="{w}"), call("Bash", command="ls {w}"))',
    "go_on(); end()",
    'go_on(); leave(say("Too late."))',
    'user("More.")',
    'assistant("A note {w}.")',
    'edit(texts=["Changed {w}."])',
    'edit(0, texts=["Changed {w}."])',
    'edit_call(command="echo {w}")',
    'edit_call(0, command="echo {w}")',
    'rewrite("trim")',
    "forget_thoughts()",
    'ids("clean")',
    'ids("number")',
    "flip_lists()",
    "mark_newest()",
    "rewind()",
    "drop_exchange(0)",
    'change(0, "Something else {w}.")',
    "compact()",
    'tools("add")',
    'tools("remove")',
    'system("Another one {w}.")',
    'branch("b")',
    "b.go_on(); b.work()",
    'b.user("Beside it.")',
    'b.edit(texts=["Changed there {w}."])',
)


def make_walk(steps: Sequence[str]) -> Scenario:
    """Return a scenario of these steps."""
    source = "\n".join(['branch("b"); user("Begin.")', *steps, "go_on(); end()"])
    return Scenario("walk", WALK, "random steps, shrunk", source)


async def find_failure(trial: Trial, wire: str, *, examples: int, seed: int) -> Cell | None:
    """Return the shortest failure among so many random programs on one API; None without one.

    Raises RefereeError if hypothesis is not installed.
    """
    try:
        from hypothesis import HealthCheck, Phase, find, settings, strategies
        from hypothesis.errors import NoSuchExample
    except ModuleNotFoundError as error:
        raise RefereeError("walks need hypothesis: pip install 'agentrl[walks]'") from error
    loop = asyncio.get_running_loop()

    def run(steps: Sequence[str]) -> Cell:
        return asyncio.run_coroutine_threadsafe(
            trial.run_cell(make_walk(steps), wire), loop
        ).result()

    def fails(steps: Sequence[str]) -> bool:
        return run(steps).state in ("wrong", "lost")

    def search() -> Cell | None:
        chosen = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        programs = strategies.lists(strategies.sampled_from(STEPS), max_size=MOST_STEPS)
        try:
            shortest = find(programs, fails, settings=chosen, random=random.Random(seed))
        except NoSuchExample:
            return None
        return run(shortest)

    return await asyncio.to_thread(search)
