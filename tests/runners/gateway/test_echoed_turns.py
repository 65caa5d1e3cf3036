"""What an agent program sends back is what the policy sees, in each API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from agentrl.testing.completions import say, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from tests.fakes.echo_table import TABLE, TOOLS, Block, Row, call, text
from tests.fakes.running_gateway import Agent, Gateway
from tests.fakes.wire_turns import APIS, Api, Tools, Turn


@dataclass
class Conversation:
    """A session's program, of any API, that may send back other turns than it got."""

    agent: Agent
    engine: ScriptedEngine
    api: Api
    turns: list[Turn] = field(default_factory=list)

    async def ask(self, sampled: str, tools: Tools = TOOLS) -> list[str]:
        """Send the conversation as it is; return the ids of the calls in the answer."""
        self.engine.say(sampled)
        status, answer = await self.agent.post(self.api.path, self.api.body(self.turns, tools))
        assert status == 200, answer
        return self.api.issued_ids(answer)

    async def begin(self, *sent: Block) -> list[str]:
        """Take two turns, the second of which answers with these blocks."""
        self.turns = [("user", "Fix it.")]
        await self.ask(say("Ready."))
        self.turns += [("said", [text("Ready.")]), ("user", "Go.")]
        return await self.ask(sampled(sent))

    def prompt(self, turn: int) -> list[int]:
        """Return what the policy saw."""
        return list(self.engine.seen.requests[turn]["input_ids"])

    def shown(self, turn: int) -> str:
        """Return what the policy saw, as text."""
        return str(self.engine.tokenizer.decode(self.prompt(turn), skip_special_tokens=False))

    def path(self, turn: int) -> list[int]:
        """Return what the policy saw and sampled."""
        return [*self.prompt(turn), *self.engine.seen.answered[turn][0]]


def sampled(blocks: Sequence[Block]) -> str:
    """Return blocks as the policy samples them."""
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    shown = [block for block in blocks if block["type"] != "thinking"]
    return spoken(shown, thinking=thoughts[0] if thoughts else None)


@pytest.fixture(params=sorted(APIS))
async def talk(
    request: pytest.FixtureRequest, gateway: Gateway, engine: ScriptedEngine
) -> Conversation:
    """Return a conversation of each API."""
    return Conversation(await gateway.session(), engine, APIS[request.param])


def rewritten(blocks: Sequence[Block], ids: dict[str, str]) -> list[Block]:
    """Return blocks with other ids of their calls."""
    return [block | {"id": ids[block["id"]]} if "id" in block else block for block in blocks]


def answered(blocks: Sequence[Block]) -> Turn:
    """Return what follows a turn: its calls' results, or else the user."""
    ids = [block["id"] for block in blocks if "id" in block]
    return ("results", [(each, "ok") for each in ids]) if ids else ("user", "And?")


def strip(name: str, issued: str) -> str:
    """Return an id as a program makes it of the one that was issued."""
    return issued.replace("_", "") if name == "strip" else name


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.number}-{row.comes_back_as}")
async def test_the_policy_sees_the_turn_that_came_back(row: Row, talk: Conversation) -> None:
    issued = await talk.begin(*row.sent)
    sent_ids = [block["id"] for block in row.sent if "id" in block]
    ids = dict(zip(sent_ids, issued, strict=True))
    ids = {each: strip(row.ids.get(each) or new, new) for each, new in ids.items()}
    came = rewritten(row.came, ids)
    talk.turns += [("said", came), answered(came)]
    await talk.ask(say("Done."))
    talk.turns += [("said", [text("Done.")]), ("user", "More.")]
    await talk.ask(say("Enough."))
    finished = await talk.agent.finish()
    breaks = finished["stats"]["breaks"]
    kinds = [chain["kind"] for chain in finished["segments"]]
    assert finished["stats"]["trained_tokens"] == finished["stats"]["sampled_tokens"]
    assert talk.prompt(3)[: len(talk.path(2))] == talk.path(2), "what came is known from now on"
    if row.kind != "edit":
        assert (breaks, kinds) == ([], ["final"])
        assert talk.prompt(2)[: len(talk.path(1))] == talk.path(1)
        return
    assert [each["kind"] for each in breaks] == ["rewrite" if row.number == 21 else "edit"]
    assert kinds == ["wipe" if row.number == 21 else "edit", "final"]
    assert [chain["own_turns"] for chain in finished["segments"]] == [[0, 1], [2, 3]]
    fork = talk.path(0)
    assert talk.prompt(2)[: len(fork)] == fork, "what is before the edit is not rendered again"
    seen = talk.shown(2)[len(talk.engine.tokenizer.decode(fork, skip_special_tokens=False)) :]
    said = [block for block in came if block["type"] in ("text", "tool_use")]
    for block in said:
        words = block.get("text") or orjson.dumps(block["input"]).decode()
        assert words.replace('":', '": ').replace(',"', ', "') in seen or words in seen
    assert seen.count("<tool_call>") == len([block for block in said if "id" in block])
    assert seen.count("<|im_start|>assistant") == 2


async def test_a_break_of_an_edit_has_the_message_and_both_texts(talk: Conversation) -> None:
    await talk.begin(text("The key is SECRET."))
    talk.turns += [("said", [text("The key is [redacted].")]), ("user", "And?")]
    await talk.ask(say("Done."))
    (left,) = (await talk.agent.stats())["breaks"]
    assert (left["turn"], left["kind"], left["message"]) == (2, "edit", 3)
    assert (left["before"], left["after"]) == ("The key is SECRET.", "The key is [redacted].")
    turn = talk.agent.gateway.turns("s1")[2]
    assert turn.break_reason is not None
    assert turn.break_reason.startswith("edit: message 3 (assistant text) came back changed")
    assert turn.parent == 0


async def test_an_edit_that_is_undone_goes_on_where_it_was_left(talk: Conversation) -> None:
    await talk.begin(text("One."))
    before = list(talk.turns)
    talk.turns += [("said", [text("Two.")]), ("user", "And?")]
    await talk.ask(say("Done."))
    talk.turns = [*before, ("said", [text("One.")]), ("user", "Back.")]
    await talk.ask(say("Well."))
    assert talk.prompt(3)[: len(talk.path(1))] == talk.path(1)


async def test_of_alternatives_at_one_place_the_one_that_comes_back_is_continued(
    talk: Conversation,
) -> None:
    ask: Turn = ("user", "Choose.")
    alpha, beta = ([ask, ("said", [text(each)])] for each in ("alpha", "beta"))
    conversations: list[tuple[list[Turn], str]] = [
        ([ask], "alpha"),
        ([*alpha, ("user", "Go.")], "of alpha"),
        ([ask], "beta"),
        ([*alpha, ("user", "Go back.")], "of alpha"),
        ([*beta, ("user", "Go.")], "of beta"),
    ]
    for talk.turns, words in conversations:
        await talk.ask(say(words))
    assert talk.prompt(3)[: len(talk.path(0))] == talk.path(0)
    assert talk.prompt(4)[: len(talk.path(2))] == talk.path(2)


async def test_ids_that_are_rewritten_every_time_make_one_chain(talk: Conversation) -> None:
    talk.turns = [("user", "Fix it.")]
    made: list[list[str]] = []
    for number in range(6):
        issued = await talk.ask(sampled([call("Bash", command=f"run {number}")]))
        made.append(issued)
        new = [f"{number}{each.replace('_', '')[:9]}" for each in issued]
        said = [call("Bash", new[0], command=f"run {number}")]
        talk.turns += [("said", said), ("results", [(new[0], f"ran {number}")])]
    finished = await talk.agent.finish()
    assert [chain["kind"] for chain in finished["segments"]] == ["final"]
    assert finished["stats"]["breaks"] == []
    for number, turn in enumerate(talk.agent.gateway.turns("s1")[1:]):
        results = [each for each in turn.request["messages"] if each["role"] == "tool"]
        assert [each["tool_call_id"] for each in results] == made[number]


async def test_results_cannot_be_crossed_by_other_ids(talk: Conversation) -> None:
    await talk.begin(call("Bash", "a", command="ls"), call("Bash", "b", command="pwd"))

    def history(first: str, second: str) -> list[Turn]:
        said = [call("Bash", first, command="ls"), call("Bash", second, command="pwd")]
        return [("said", said), ("results", [("x", "files"), ("y", "place")]), ("user", "And?")]

    begun = list(talk.turns)
    talk.turns = begun + history("x", "y")
    await talk.ask(say("Fine."))
    talk.turns = [*begun, *history("y", "x"), ("said", [text("Fine.")]), ("user", "Go.")]
    await talk.ask(say("Odd."))
    assert [each["kind"] for each in (await talk.agent.stats())["breaks"]] == ["rewrite"]


async def test_under_rewritten_ids_a_result_of_no_call_is_a_rewrite(talk: Conversation) -> None:
    (issued,) = await talk.begin(call("Bash", command="ls"))
    talk.turns += [("said", [call("Bash", "x", command="ls")]), ("results", [(issued, "files")])]
    await talk.ask(say("Done."))
    assert [each["kind"] for each in (await talk.agent.stats())["breaks"]] == ["rewrite"]
    assert "files" in talk.shown(2)


async def test_an_id_of_another_call_is_never_taken_for_a_rewritten_one(
    talk: Conversation,
) -> None:
    (first,) = await talk.begin(call("Bash", command="ls"))
    begun = list(talk.turns)
    talk.turns = [*begun, ("said", [call("Bash", first, command="ls")])]
    talk.turns.append(("results", [(first, "files")]))
    (second,) = await talk.ask(sampled([call("Bash", command="ls")]))
    talk.turns = [*begun, ("said", [call("Bash", second, command="ls")])]
    talk.turns += [("results", [(second, "files")]), ("user", "And?")]
    await talk.ask(say("Done."))
    (left,) = (await talk.agent.stats())["breaks"]
    assert left["kind"] == "rewrite"
    assert talk.agent.gateway.turns("s1")[3].parent == 0


async def test_defaults_are_not_those_of_a_later_request(talk: Conversation) -> None:
    (issued,) = await talk.begin(call("Bash", command="ls"))
    loose: dict[str, Any] = orjson.loads(orjson.dumps(TOOLS))
    loose["Bash"]["properties"]["timeout"]["default"] = 7
    talk.turns.append(("said", [call("Bash", issued, command="ls", timeout=7)]))
    talk.turns.append(("results", [(issued, "files")]))
    await talk.ask(say("Done."), loose)
    assert [each["kind"] for each in (await talk.agent.stats())["breaks"]] == ["edit"]


GREP = {"Grep": {"type": "object", "properties": {"pattern": {"type": "string"}}}}


async def test_a_tool_that_comes_later_begins_a_chain_that_shows_it(talk: Conversation) -> None:
    await talk.begin(text("One."))
    talk.turns += [("said", [text("One.")]), ("user", "And?")]
    await talk.ask(say("Two."), TOOLS | GREP)
    talk.turns += [("said", [text("Two.")]), ("user", "More.")]
    await talk.ask(say("Three."), dict(reversed((TOOLS | GREP).items())))
    talk.turns += [("said", [text("Three.")]), ("user", "More.")]
    await talk.ask(say("Four."), GREP)
    finished = await talk.agent.finish()
    stats = finished["stats"]
    assert [(each["kind"], each["turn"]) for each in stats["breaks"]] == [("tools", 2)]
    assert stats["breaks"][0]["reason"] == "the prompt before does not show Grep"
    assert (stats["tools_added"], stats["tools_changed"]) == (1, 2)
    assert "pattern" in talk.shown(2)
    owned = [(chain["kind"], chain["own_turns"]) for chain in finished["segments"]]
    assert owned == [("wipe", [0, 1]), ("final", [2, 3, 4])]


@pytest.mark.parametrize("deferred", [False, True])
async def test_a_tool_that_a_result_refers_to_is_shown_there(
    deferred: bool, gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    later = {"name": "Grep", "input_schema": GREP["Grep"], "defer_loading": deferred}
    search = {"name": "ToolSearch", "input_schema": {"type": "object"}}
    engine.say(sampled([call("ToolSearch", query="grep")]), say("Done."), say("Well."))
    first = [{"role": "user", "content": "Search."}]
    answer = await agent.ask(first, tools=[search, *([later] if deferred else [])])
    found = [{"type": "tool_reference", "tool_name": "Grep"}]
    issued = answer["content"][0]["id"]
    result = {"type": "tool_result", "tool_use_id": issued, "content": found}
    turns = [*first, {"role": "assistant", "content": answer["content"]}]
    turns.append({"role": "user", "content": [result]})
    await agent.ask(turns, tools=[search, later])
    turns += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "And?"}]
    await agent.ask(turns, tools=[search, later])
    assert (await agent.stats())["breaks"] == []
    before, after = (
        engine.tokenizer.decode(engine.seen.requests[turn]["input_ids"]) for turn in (0, 1)
    )
    assert "pattern" not in before
    assert after.count("pattern") == 1
    assert [turn.segment for turn in gateway.turns("s1")] == [0, 0, 0]


async def test_a_deferred_tool_that_a_server_would_find_is_shown(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(say("Done."))
    later = {"name": "Grep", "input_schema": GREP["Grep"], "defer_loading": True}
    server = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    await agent.ask([{"role": "user", "content": "Go."}], tools=[server, later])
    assert "pattern" in engine.tokenizer.decode(engine.seen.requests[0]["input_ids"])


async def test_what_is_done_to_the_form_of_an_answer_is_counted_once(talk: Conversation) -> None:
    (issued,) = await talk.begin(call("Bash", command="cd /w && ls  \n"))
    talk.turns += [("said", [call("Bash", issued, command="ls\n")]), ("results", [(issued, "ok")])]
    await talk.ask(say("Done."))
    talk.turns += [("said", [text("Done.")]), ("user", "More.")]
    await talk.ask(say("Enough."))
    stats = await talk.agent.stats()
    assert stats["mechanical"] == {"leading_cd": 1, "trailing_space": 1}
    assert (stats["edits"], stats["breaks"]) == (0, [])
