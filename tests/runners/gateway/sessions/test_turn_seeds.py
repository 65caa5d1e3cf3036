"""A turn's seed follows from its prompt, whatever the order in which sub-agents ask."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentrl.testing.completions import spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.sessions.turn_seeds import TurnSeeds
from runners.records.record import IdArray
from tests.fakes.running_gateway import Gateway, user

Conversation = tuple[tuple[int, ...], ...]
"""The ids that each of its turns adds."""
DONE = spoken([{"type": "text", "text": "done"}])


def to_ids(*ids: int) -> IdArray:
    return np.array(ids, np.int32)


def take_all(conversations: list[Conversation], order: list[int], seed: int) -> dict[int, set[int]]:
    """Return the seeds by conversation; ``order`` says which of them takes its next turn."""
    seeds, taken = TurnSeeds(seed), 0
    last: dict[int, int] = {}
    turns: dict[int, int] = dict.fromkeys(range(len(conversations)), 0)
    found: dict[int, set[int]] = {number: set() for number in turns}
    for number in [*order, *(n for n, each in enumerate(conversations) for _ in each)]:
        if turns[number] == len(conversations[number]):
            continue
        with seeds.reserve(
            last.get(number), to_ids(*conversations[number][turns[number]])
        ) as place:
            seeds.add_turn(place)
        last[number], taken = taken, taken + 1
        turns[number] += 1
        found[number].add(place.seed)
    return found


ids = st.lists(st.integers(0, 2), min_size=1, max_size=2).map(tuple)
conversations = st.lists(
    st.lists(ids, min_size=1, max_size=3).map(tuple),
    min_size=2,
    max_size=4,
    unique_by=lambda turns: turns[0],
)


@given(conversations, st.lists(st.integers(0, 1), max_size=8), st.integers(0, 2**40))
def test_the_order_of_conversations_changes_no_seed(
    several: list[Conversation], order: list[int], seed: int
) -> None:
    found = take_all(several, order, seed)
    assert found == take_all(several, [], seed)
    assert sum(map(len, found.values())) == len(set().union(*found.values())), "all differ"
    assert all(0 <= each < 2**31 for seeds in found.values() for each in seeds)
    assert found != take_all(several, order, seed + 1)


def test_equal_prompts_at_once_have_different_seeds_and_a_free_one_is_given_out_again() -> None:
    seeds = TurnSeeds(7)
    with (
        seeds.reserve(None, to_ids(1, 2)) as first,
        seeds.reserve(None, to_ids(1, 2)) as second,
    ):
        assert first.seed != second.seed
        seeds.add_turn(second)
    with seeds.reserve(None, to_ids(1, 2)) as again:
        assert again.seed == first.seed, "the first was never taken"
        seeds.add_turn(again)
    with seeds.reserve(None, to_ids(1, 2)) as third:
        assert third.seed not in (first.seed, second.seed)
    with (
        seeds.reserve(0, to_ids(3)) as after_second,
        seeds.reserve(1, to_ids(3)) as after_first,
    ):
        assert after_second.seed != after_first.seed


async def test_sub_agents_get_the_seeds_of_their_prompts(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    async def ask(name: str, tasks: list[str]) -> dict[str, int]:
        agent = await gateway.session(name, seed=11)
        seen = len(engine.seen.requests)
        for task in tasks:
            engine.say(DONE)
            headers = {"x-claude-code-agent-id": f"{name}-{task}"}
            status, _ = await agent.post("/v1/messages", agent.body([user(task)]), **headers)
            assert status == 200
        return {
            str(request["input_ids"]): request["sampling_params"]["sampling_seed"]
            for request in engine.seen.requests[seen:]
        }

    found = await ask("a", ["look", "test"])
    assert len(set(found.values())) == 2
    assert await ask("b", ["test", "look"]) == found
