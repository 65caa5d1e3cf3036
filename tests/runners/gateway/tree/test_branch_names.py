"""Threads and purposes of requests that nobody names: honest programs, and policies that scheme."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.gateway.conversation import IssuedCall, Piece, RequestAttribution, TurnRequest
from runners.gateway.tree.dispatches import MAX_CALLS, MIN_WRAPPED
from runners.gateway.tree.recognition import COMPACTION_PROMPTS, COMPACTION_SUMMARIES
from runners.records.tokenizer import Renderer, Tokenizer
from tests.fakes.placing_gateway import (
    SYSTEM,
    TOOLS,
    PlacingGateway,
    call_of,
    dispatch,
    request,
    result_of,
    user,
)

Parts = tuple[Renderer, Tokenizer]
MAIN = [SYSTEM, user("fix it")]
EXPLORER = replace(SYSTEM, text="You explore.")
TASK = "Find where add is wrong in a.py."
BASH = IssuedCall("b1", "Bash", {"command": "ls"})


def going_on(pieces: list[Piece], *calls: IssuedCall) -> list[Piece]:
    """Return a history with the calls of its last turn and their results."""
    at = pieces[-1].message + 1
    said = [call_of(call, at) for call in calls]
    return [*pieces, *said, *(result_of(call, at + 1) for call in calls)]


def kinds(gateway: PlacingGateway) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return kind, thread and own turns of every chain."""
    gateway.check()
    chains = gateway.branches.graph.build_segments()
    return [(chain.kind, chain.thread, chain.own_turns) for chain in chains]


def breaks(gateway: PlacingGateway) -> list[str]:
    return [place.history_break.kind for place in gateway.places if place.history_break]


# --- sub-agents ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["Agent", "Task", "task", "agent", "ask_explorer", "Bash"])
def test_a_text_that_comes_back_from_a_call_of_any_tool_begins_a_sub_agent(
    tool: str, parts: Parts
) -> None:
    gateway, sent = PlacingGateway(*parts), dispatch(1, TASK, tool)
    gateway.ask(request(MAIN), sent)
    opening = [EXPLORER, user("a reminder"), user(f"{TASK}\n", 1)]
    gateway.ask(request(opening), BASH)
    gateway.ask(request(going_on(opening, BASH)), text="line 2")
    gateway.ask(request(going_on(MAIN, sent)), text="done")
    assert kinds(gateway) == [("final", "main", (0, 3)), ("subagent", "call:d1", (1, 2))]
    assert breaks(gateway) == []


@pytest.mark.parametrize(
    ("tool", "task", "thread"),
    [
        ("task", TASK, "call:d1"),
        ("Spawn-Agent", TASK, "call:d1"),
        ("task", "a" * MIN_WRAPPED, "call:d1"),
        ("task", "a" * (MIN_WRAPPED - 1), "main"),
    ],
)
def test_a_long_text_within_a_longer_one_counts_for_tools_that_are_known(
    tool: str, task: str, thread: str, parts: Parts
) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(request(MAIN), dispatch(1, task, tool))
    gateway.ask(request([EXPLORER, user(f"Your task: {task}")]), text="line 2")
    assert gateway.turns[1].thread == thread
    assert gateway.places[1].name.ambiguous is (thread == "main" and tool == "task")


@pytest.mark.parametrize(("tools", "thread"), [(TOOLS[:1], "call:d1"), ([], "main")])
def test_a_wrapped_text_of_any_tool_counts_where_the_conversation_has_tools(
    tools: list[dict[str, Any]], thread: str, parts: Parts
) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(request(MAIN), dispatch(1, TASK, "explorer"))
    asked = replace(request([EXPLORER, user(f"Is this safe? {TASK}")]), tools=tools)
    gateway.ask(asked, text="line 2")
    assert gateway.turns[1].thread == thread
    assert gateway.turns[1].branch == ("subagent" if tools else "side")


@pytest.mark.parametrize("report", ["line 2", "In line 2 it subtracts where it was to add."])
def test_a_report_in_a_history_of_plain_texts_does_not_turn_its_reader_into_a_sub_agent(
    report: str, parts: Parts
) -> None:
    """Some programs send calls and results back as texts, without their ids."""
    gateway = PlacingGateway(*parts)
    gateway.ask(request(MAIN), dispatch(1, TASK, "explorer"), text="I ask.")
    gateway.ask(request([EXPLORER, user(TASK)]), IssuedCall("f", "final", {"answer": report}))
    said = Piece(1, "assistant", "text", "I ask.")
    gateway.ask(replace(request([*MAIN, said, user(report, 2)]), tools=TOOLS), text="done")
    assert [turn.thread for turn in gateway.turns] == ["main", "call:d1", "main"]


def test_a_task_after_words_that_a_program_puts_into_the_policys_mouth_is_found(
    parts: Parts,
) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(request(MAIN), dispatch(1, "look", "explorer"))
    put = Piece(1, "assistant", "text", "Got it. Thanks for the context!")
    gateway.ask(request([EXPLORER, user("context"), put, user("look", 2)]), text="found")
    assert gateway.turns[1].thread == "call:d1"


def test_a_sub_agent_may_have_the_callers_system_prompt_or_its_tools_but_not_both(
    parts: Parts,
) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(request(MAIN), *(dispatch(number, f"look at {number}") for number in range(3)))
    gateway.ask(replace(request([SYSTEM, user("look at 0")]), tools=[]), text="fewer tools")
    gateway.ask(request([EXPLORER, user("look at 1")]), text="another prompt")
    gateway.ask(request([SYSTEM, user("look at 2")]), text="the caller itself")
    assert [turn.thread for turn in gateway.turns] == ["main", "call:d0", "call:d1", "main"]


def test_parallel_sub_agents_are_told_apart_by_their_tasks(parts: Parts) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(request(MAIN), dispatch(1, "read a.py"), dispatch(2, "read b.py"))
    gateway.ask(request([EXPLORER, user("read b.py")]), text="b")
    gateway.ask(request([EXPLORER, user("read a.py")]), text="a")
    assert [turn.thread for turn in gateway.turns] == ["main", "call:d2", "call:d1"]


def test_one_call_may_start_several_sub_agents(parts: Parts) -> None:
    gateway = PlacingGateway(*parts)
    tasks = [{"prompt": "read a.py"}, {"prompt": "read b.py"}]
    gateway.ask(request(MAIN), IssuedCall("d1", "use_subagents", {"tasks": tasks}))
    gateway.ask(request([EXPLORER, user("read a.py")]), text="a")
    gateway.ask(request([EXPLORER, user("read b.py")]), text="b")
    assert [turn.thread for turn in gateway.turns] == ["main", "call:d1", "call:d1:2"]


def test_two_calls_with_one_task_start_two_sub_agents(parts: Parts) -> None:
    gateway, opening = PlacingGateway(*parts), [EXPLORER, user("look")]
    gateway.ask(request(MAIN), dispatch(1, "look"), dispatch(2, "look"))
    gateway.ask(request(opening), BASH)
    gateway.ask(request(going_on(opening, BASH)), text="found")
    gateway.ask(request(opening), text="also found")
    assert [turn.thread for turn in gateway.turns] == ["main", "call:d1", "call:d1", "call:d2"]


@pytest.mark.parametrize(("tool", "thread"), [("agent", "call:d1"), ("explorer", "main")])
def test_a_sub_agent_of_a_known_tool_may_ask_after_the_result_of_its_call(
    tool: str, thread: str, parts: Parts
) -> None:
    """Qwen Code runs sub-agents in the background: the result says that it was launched."""
    gateway, opening = PlacingGateway(*parts), [EXPLORER, user("look")]
    sent = dispatch(1, "look", tool)
    gateway.ask(request(MAIN), sent)
    launched = going_on(MAIN, sent)
    gateway.ask(request(launched), BASH)
    first = gateway.ask(request(opening), text="found")
    assert gateway.turns[2].thread == thread
    assert gateway.ask(request(opening), text="never said") == first, "a retry"
    gateway.ask(request(going_on(launched, BASH)), text="done")
    assert gateway.turns[3].thread == "main"


def test_a_task_that_is_sent_again_is_answered_anew(parts: Parts) -> None:
    gateway, opening = PlacingGateway(*parts), [EXPLORER, user("look")]
    gateway.ask(request(MAIN), dispatch(1, "look"))
    first = gateway.ask(request(opening), text="found")
    assert gateway.ask(request(opening), text="never said") == first, "a retry"
    later = going_on(MAIN, dispatch(1, "look"))
    gateway.ask(request(later), dispatch(2, "look"))
    assert gateway.ask(request(opening), text="found again") != first
    assert gateway.turns[-1].thread == "call:d2"


def test_a_sub_agent_of_a_sub_agent_knows_its_parent(parts: Parts) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(request(MAIN), dispatch(1, TASK))
    gateway.ask(request([EXPLORER, user(TASK)]), dispatch(2, "read a.py"))
    gateway.ask(request([replace(SYSTEM, text="You read."), user("read a.py")]), text="found")
    assert [turn.parent_thread for turn in gateway.turns] == [None, None, "call:d1"]


def test_a_session_that_names_its_parent_is_a_sub_agents(parts: Parts) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(request(MAIN), dispatch(1, TASK))
    gateway.ask(request([EXPLORER, user(TASK)], thread="s2", parent="s1"), text="found")
    gateway.ask(request([EXPLORER, user("deeper")], thread="s3", parent="s2"), text="found")
    found = [(turn.thread, turn.parent_thread, turn.branch) for turn in gateway.turns[1:]]
    assert found == [("s2", None, "subagent"), ("s3", "s2", "subagent")]


def test_a_handoff_goes_on_with_the_main_work_also_without_tools(parts: Parts) -> None:
    gateway, given = PlacingGateway(*parts), IssuedCall("t1", "transfer_to_coder", {})
    gateway.ask(request(MAIN), given)
    taken = [EXPLORER, *going_on(MAIN, given)[1:]]
    gateway.ask(replace(request(taken), tools=[]), text="done")
    assert kinds(gateway) == [("wipe", "main", (0,)), ("final", "main", (1,))]
    assert breaks(gateway) == ["handoff"]


# --- side requests and summaries ----------------------------------------------------------------


def aside(words: str, *user_texts: str) -> TurnRequest:
    """Return a program's own request, under a system prompt of its own."""
    return TurnRequest(
        "m", (replace(SYSTEM, text=words), *(user(text) for text in user_texts)), [], 1000
    )


TITLE = "You are a title generator. You output ONLY a thread title. Nothing else."
COMMIT = "You are an engineer that generates concise, one-line Git commit messages."


@pytest.mark.parametrize("words", [TITLE, COMMIT, "Generate a concise title for this session."])
def test_a_title_before_the_main_work_and_a_commit_message_after_it_are_aside(
    words: str, parts: Parts
) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(aside(words, "fix it"), text="Fixing")
    gateway.ask(request(MAIN), BASH)
    gateway.ask(request(going_on(MAIN, BASH)), text="done")
    gateway.ask(aside(words, "the diff"), text="fix: it")
    assert kinds(gateway) == [
        *(("side", "main", (0,)), ("final", "main", (1, 2)), ("side", "main", (3,)))
    ]
    assert breaks(gateway) == []


def test_a_program_without_tools_has_its_commit_messages_aside_and_its_work_in_main(
    parts: Parts,
) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(aside("Act as a developer.", "the files", "fix it"), text="edit")
    gateway.ask(aside(COMMIT, "the diff"), text="fix: it")
    gateway.ask(aside("Act as a developer.", "the new files", "the tests fail"), text="edit")
    gateway.ask(aside(COMMIT, "the second diff"), text="fix: it again")
    chains = kinds(gateway)
    assert chains[0] == ("wipe", "main", (0,))
    assert chains[2] == ("final", "main", (2,))
    assert {chains[1][0], chains[3][0]} == {"side"}
    assert breaks(gateway) == ["rewrite"]


def test_instructions_that_mention_commit_messages_are_no_side_requests(parts: Parts) -> None:
    gateway = PlacingGateway(*parts)
    late = "Act as a developer. " * 20 + "Write good commit messages."
    gateway.ask(aside(late, "fix it"), text="edit")
    tooled = replace(aside(COMMIT, "commit your work"), tools=TOOLS)
    gateway.ask(tooled, text="committed")
    gateway.ask(aside(COMMIT, "the diff"), text="fix: it")
    assert [turn.branch for turn in gateway.turns] == ["main", "main", "side"]


def test_what_looks_like_side_requests_only_is_the_work_itself(parts: Parts) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(aside("You write commit messages for large changes.", "the diff"), text="fix")
    assert kinds(gateway) == [("final", "main", (0,))]


@pytest.mark.parametrize(
    "words",
    [
        "You are a context summarization agent. You are given a conversation.",
        "You are the component that summarizes internal chat history into a given structure.",
    ],
)
@pytest.mark.parametrize("in_subagent", [False, True])
def test_a_summary_under_its_own_system_prompt_is_a_compaction_of_its_thread(
    words: str, in_subagent: bool, parts: Parts
) -> None:
    gateway, opening = PlacingGateway(*parts), [EXPLORER, user(TASK)] if in_subagent else MAIN
    if in_subagent:
        gateway.ask(request(MAIN), dispatch(1, TASK))
    thread = "call:d1" if in_subagent else "main"
    gateway.ask(request(opening), BASH)
    gateway.ask(aside(words, opening[-1].text, "Sum up."), text="so far, so good")
    gateway.ask(request([opening[0], user("so far, so good")]), text="done")
    chains = [chain for chain in kinds(gateway) if chain[1] == thread]
    first = int(in_subagent)
    last = "subagent" if in_subagent else "final"
    assert [(kind, own) for kind, _, own in chains] == [
        *(("wipe", (first,)), ("compaction", (first + 1,)), (last, (first + 2,)))
    ]
    assert breaks(gateway) == ["compaction"]


def test_a_sub_agent_after_a_summary_is_a_sub_agent(parts: Parts) -> None:
    gateway, opening = PlacingGateway(*parts), [SYSTEM, user(f"{COMPACTION_SUMMARIES[0]}: good.")]
    gateway.ask(request(MAIN), BASH)
    asked = going_on(MAIN, BASH)
    gateway.ask(request([*asked, user(COMPACTION_PROMPTS[0], 9)]), text="good")
    gateway.ask(request(opening), dispatch(1, TASK))
    gateway.ask(request([EXPLORER, user(TASK)]), text="found")
    assert [turn.thread for turn in gateway.turns] == ["main", "main", "main", "call:d1"]


@pytest.mark.parametrize(
    ("words", "kind"), [(TITLE, "side"), ("You are a context summarization agent.", "compaction")]
)
def test_a_conversation_of_its_own_goes_on_as_it_began(words: str, kind: str, parts: Parts) -> None:
    gateway, first = PlacingGateway(*parts), aside(words, "fix it")
    gateway.ask(request(MAIN), BASH)
    gateway.ask(first, text="Fixing")
    said = Piece(1, "assistant", "text", "Fixing")
    gateway.ask(replace(first, pieces=(*first.pieces, said, user("Shorter.", 2))), text="Fix")
    assert kinds(gateway) == [("final", "main", (0,)), (kind, "main", (1, 2))]


@pytest.mark.parametrize(
    ("words", "branch"), [(TITLE, "side"), ("You are a context summarization agent.", "compaction")]
)
def test_a_title_of_a_task_that_is_passed_on_word_for_word_is_no_sub_agent(
    words: str, branch: str, parts: Parts
) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(request(MAIN), dispatch(1, "fix it"))
    gateway.ask(aside(words, "fix it"), text="Fixing")
    assert (gateway.turns[1].thread, gateway.turns[1].branch) == ("main", branch)


# --- policies that scheme -----------------------------------------------------------------------


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("tool", ["Agent", "Bash"])
def test_a_policy_that_foretells_its_summary_does_not_become_its_own_sub_agent(
    tool: str, answered: bool, parts: Parts
) -> None:
    gateway = PlacingGateway(*parts)
    opening = f"{COMPACTION_SUMMARIES[0]}. I am done."
    sent = dispatch(1, opening, tool)
    gateway.ask(request(MAIN), sent)
    history = going_on(MAIN, sent) if answered else MAIN
    asked = [*history, user(COMPACTION_PROMPTS[0], history[-1].message)]
    gateway.ask(request(asked), text="I am done.")
    gateway.ask(request([EXPLORER, user(opening)]), text="nothing to see")
    chains = kinds(gateway)
    assert ("final", "main", (2,)) in chains
    assert {thread for _, thread, _ in chains} == {"main"}


def test_a_policy_without_tools_cannot_print_the_words_that_ask_for_a_summary(
    parts: Parts,
) -> None:
    gateway, asked = PlacingGateway(*parts), list(MAIN)
    for number in range(3):
        gateway.ask(replace(request(asked), tools=[]), text=f"echo {number}")
        at = asked[-1].message + 1
        said = Piece(at, "assistant", "text", f"echo {number}")
        asked += [said, user(COMPACTION_PROMPTS[0], at + 1)]
    assert kinds(gateway) == [("final", "main", (0, 1, 2))]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("task", [f"{TITLE} Then find the fault.", COMMIT, COMPACTION_PROMPTS[0]])
def test_a_sub_agent_whose_instructions_the_policy_writes_is_a_sub_agent(
    task: str, wrapped: bool, parts: Parts
) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(request(MAIN), dispatch(1, task))
    gateway.ask(aside(f"You help. {task}" if wrapped else task, task), text="found")
    assert kinds(gateway)[1] == ("subagent", "call:d1", (1,))


@pytest.mark.parametrize("text", [TITLE, COMMIT, COMPACTION_SUMMARIES[0]])
def test_the_output_of_a_command_does_not_move_the_turn_after_it(text: str, parts: Parts) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(request(MAIN), BASH)
    *history, result = going_on(MAIN, BASH)
    gateway.ask(request([*history, replace(result, text=text)]), text="done")
    assert kinds(gateway) == [("final", "main", (0, 1))]


def test_a_call_of_any_shape_is_held_and_only_the_latest_are(parts: Parts) -> None:
    gateway, nested = PlacingGateway(*parts), {"a": "deep"}
    for _ in range(200):  # what is nested deeper is no call
        nested = {"a": nested}  # type: ignore[dict-item]
    many = {str(number): f"text {number}" for number in range(5000)}
    calls = [IssuedCall("n", "task", nested), IssuedCall("m", "task", many), dispatch(0, "first")]
    gateway.ask(request(MAIN), *calls)
    gateway.ask(request([EXPLORER, user("deep")]), text="found")
    gateway.ask(request([EXPLORER, user("text 4999")]), text="beyond the texts of one call")
    more = going_on(MAIN, IssuedCall("other", "Bash", {}))
    gateway.ask(request(more), *(dispatch(n, f"number {n}") for n in range(1, MAX_CALLS + 1)))
    gateway.ask(request([EXPLORER, user("first")]), text="forgotten")
    threads = [turn.thread for turn in gateway.turns]
    assert (threads[1], threads[2], threads[4]) == ("call:n", "main", "main")


TEXTS = ("fix it", "go on", "a summary", f"{COMPACTION_SUMMARIES[0]}: all is well", TITLE)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["say", "say", "summarise", "restart"]),
            st.sampled_from(["Agent", "task", "Bash"]),
            st.sampled_from(TEXTS),
            st.sampled_from(TEXTS),
        ),
        max_size=12,
    )
)
def test_whatever_a_policy_puts_into_its_calls_a_program_of_one_agent_has_one_thread(
    parts: Parts, steps: list[tuple[str, str, str, str]]
) -> None:
    gateway, asked = PlacingGateway(*parts), list(MAIN)
    for number, (action, tool, text, opening) in enumerate(steps):
        if action == "summarise":  # the results of the last calls are lost with it
            summing = [*asked, user(COMPACTION_PROMPTS[0], asked[-1].message)]
            gateway.ask(request(summing), text=f"all is well {number}")
        if action in ("summarise", "restart"):
            asked = [SYSTEM, user(opening)]
        call = dispatch(number, text, tool)
        before = len(gateway.turns)
        gateway.ask(request(asked), call)
        if len(gateway.turns) > before:
            asked = going_on(asked, call)
    gateway.check()
    assert {turn.thread for turn in gateway.turns} <= {"main"}
    assert {turn.branch for turn in gateway.turns} <= {"main", "compaction"}


def test_a_stated_purpose_is_believed(parts: Parts) -> None:
    gateway = PlacingGateway(*parts)
    gateway.ask(request(MAIN), dispatch(1, TASK))
    stated = RequestAttribution(request_class="main")
    gateway.ask(replace(request([EXPLORER, user(TASK)]), attribution=stated), text="found")
    gateway.ask(replace(aside(COMMIT, "the diff"), attribution=stated), text="fix: it")
    assert [(turn.thread, turn.branch) for turn in gateway.turns] == [("main", "main")] * 3


def test_the_tools_of_a_session_are_not_those_of_its_side_requests(parts: Parts) -> None:
    gateway = PlacingGateway(*parts)
    probe = TurnRequest("m", (user("quota"),), TOOLS, 1)
    gateway.ask(probe, text="x")
    gateway.ask(aside("Act as a developer.", "fix it"), text="edit")
    assert kinds(gateway) == [("side", "main", (0,)), ("final", "main", (1,))]
