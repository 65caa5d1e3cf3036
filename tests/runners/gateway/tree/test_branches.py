"""Placement of requests over random behaviours of an agent program: thread, parent, breaks."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.gateway.calls.call_ids import name_calls
from runners.gateway.conversation import (
    IssuedCall,
    Piece,
    RequestAttribution,
    TurnRequest,
    group_messages,
)
from runners.gateway.tree.branches import MAX_TIPS
from runners.records.record import MAIN_THREAD
from runners.records.tokenizer import Renderer, Tokenizer
from tests.fakes.placing_gateway import (
    SYSTEM,
    TOOLS,
    PlacingGateway,
    call_of,
    request,
    result_of,
    user,
)


@dataclass
class Program:
    """An agent program with several threads; each keeps a history of its own."""

    gateway: PlacingGateway
    named: bool
    """It names its threads; a program that does not has the main thread only."""
    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    chains: int = 0
    """Chains that it started, summaries included."""
    edits: int = 0
    """Answers that it changed."""
    calls: int = 0
    last: dict[str, tuple[TurnRequest, int]] = field(default_factory=dict)
    compacted: set[str] = field(default_factory=set)

    def say(self, thread: str, edit: str) -> None:
        """Take a thread's next turn, with its history echoed as clients echo."""
        if thread not in self.pieces:
            self.pieces[thread] = [SYSTEM, user("the same task for all")]
            self.chains += 1
        if edit == "edited":
            self.change(thread)
        self.calls += 1
        call = IssuedCall(f"c{self.calls}", "Bash", {"n": self.calls})
        asked = request(
            self.echoed(thread, edit),
            thread=thread if self.named else MAIN_THREAD,
            compacted=self.named and thread in self.compacted,
        )
        turn = self.gateway.ask(asked, call, text=f"step {self.calls}")
        self.compacted.discard(thread)
        self.last[thread] = asked, turn
        at = self.pieces[thread][-1].message + 1
        said = [Piece(at, "assistant", "text", f"step {self.calls}"), call_of(call, at)]
        self.pieces[thread] += [*said, result_of(call, at + 1)]

    def change(self, thread: str) -> None:
        """Change the last answer of a thread, if its summary has not replaced it."""
        pieces = self.pieces[thread]
        said = [at for at, piece in enumerate(pieces) if piece.kind == "text"]
        if pieces[said[-1]].role == "assistant" and thread not in self.compacted:
            self.edits += 1
            self.chains += 1
            pieces[said[-1]] = replace(pieces[said[-1]], text=f"changed {self.edits}")

    def echoed(self, thread: str, edit: str) -> list[Piece]:
        """Return a thread's history in the form in which it comes back."""
        if edit != "reformed":
            return self.pieces[thread]
        found: list[Piece] = []
        for piece in self.pieces[thread]:
            added: dict[str, Any] = {}
            if piece.tool_id:
                added["tool_id"] = f"{piece.tool_id}x"
            if piece.kind == "tool_call":
                added["arguments"] = {"replace_all": None, **piece.arguments}
            elif piece.role == "assistant":
                added["text"] = f"\n{piece.text} "
                found.append(replace(piece, kind="thinking", text="Hm."))
            found.append(replace(piece, **added))
        return found

    def retry(self, thread: str) -> None:
        """Send the last request again, as after a cut stream."""
        if thread in self.last:
            asked, turn = self.last[thread]
            assert self.gateway.ask(asked, text="never said") == turn

    def compact(self, thread: str) -> None:
        """Ask for a summary and go on from it; the last turn comes back verbatim after it."""
        if len(self.pieces.get(thread, [])) < 5 or thread in self.compacted:
            return
        marker = user("CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.")
        asked = [*self.pieces[thread], replace(marker, message=self.pieces[thread][-1].message)]
        name = thread if self.named else MAIN_THREAD
        kind = "compaction" if self.named else None
        self.gateway.ask(request(asked, thread=name, request_class=kind), text="all is well")
        *_, said, call, result = self.pieces[thread]
        again = (
            "This session is being continued from a previous conversation that ran out of context"
        )
        opened = user(f"{again}: all is well {self.calls}")
        self.pieces[thread] = [
            *(SYSTEM, opened, replace(said, message=1), replace(call, message=1)),
            replace(result, message=2),
        ]
        self.compacted.add(thread)
        self.chains += 2


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["say", "say", "say", "retry", "compact"]),
        st.sampled_from([MAIN_THREAD, "a1", "a2"]),
        st.sampled_from(["faithful", "reformed", "edited"]),
    ),
    max_size=25,
)


@given(ACTIONS, st.booleans())
def test_for_any_program_every_token_is_trained_once_and_only_edits_fork(
    parts: tuple[Renderer, Tokenizer], actions: list[tuple[str, str, str]], named: bool
) -> None:
    gateway = PlacingGateway(*parts)
    program = Program(gateway, named)
    for action, thread, edit in actions:
        thread_name = thread if named else MAIN_THREAD
        if action == "say":
            program.say(thread_name, edit)
        elif action == "retry":
            program.retry(thread_name)
        else:
            program.compact(thread_name)
    gateway.check()
    waiting = sum(thread in program.pieces for thread in program.compacted)
    chains = gateway.branches.graph.build_segments()
    assert len(chains) == program.chains - waiting, "no false fork, none missing"
    kinds = [place.history_break.kind for place in gateway.places if place.history_break]
    assert set(kinds) <= {"compaction", "edit"}
    assert kinds.count("edit") == program.edits
    for prompt in gateway.prompts[-1:]:
        seen = gateway.tokenizer.decode(prompt)
        said = [piece.text for piece in gateway.last.pieces if piece.kind == "text"]
        at = 0
        for words in said:  # what the program sent, all of it and in its order
            at = seen.index(words.strip(), at) + len(words.strip())
    if named:
        assert {chain.thread for chain in chains} == set(program.pieces)


def test_byte_identical_parallel_sub_agents_stay_apart(parts: tuple[Renderer, Tokenizer]) -> None:
    gateway = PlacingGateway(*parts)
    program = Program(gateway, named=True)
    for thread in (MAIN_THREAD, "a1", "a2", "a1", "a2", MAIN_THREAD):
        program.say(thread, "faithful")
    gateway.check()
    chains = gateway.branches.graph.build_segments()
    assert [(chain.thread, chain.kind, chain.own_turns) for chain in chains] == [
        ("main", "final", (0, 5)), ("a1", "subagent", (1, 3)), ("a2", "subagent", (2, 4)),
    ]  # fmt: skip


def test_a_forked_agent_starts_as_a_branch_of_its_parent(parts: tuple[Renderer, Tokenizer]) -> None:
    gateway = PlacingGateway(*parts)
    program = Program(gateway, named=True)
    program.say(MAIN_THREAD, "faithful")
    program.say(MAIN_THREAD, "faithful")
    fork = [*program.pieces[MAIN_THREAD], replace(user("Fork started"), message=9)]
    turn = gateway.ask(request(fork, thread="f1"), text="here I go")
    program.say(MAIN_THREAD, "faithful")
    gateway.check()
    assert gateway.turns[turn].parent == 1
    assert gateway.places[turn].history_break is None
    chains = gateway.branches.graph.build_segments()
    assert [(chain.kind, chain.turns, chain.own_turns) for chain in chains] == [
        ("final", (0, 1, 3), (0, 1, 3)), ("subagent", (0, 1, 2), (2,)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "aside",
    [
        TurnRequest("m", (user("Title?"),), [], 1000),
        TurnRequest("m", (user("quota"),), TOOLS, 1),
        TurnRequest(
            "m", (user("topic"),), TOOLS, 1000, attribution=RequestAttribution(request_class="side")
        ),
    ],
)
def test_side_requests_leave_the_main_chain_alone(
    aside: TurnRequest, parts: tuple[Renderer, Tokenizer]
) -> None:
    gateway = PlacingGateway(*parts)
    program = Program(gateway, named=True)
    program.say(MAIN_THREAD, "faithful")
    gateway.ask(aside, text="A title")
    program.say(MAIN_THREAD, "faithful")
    gateway.check()
    chains = gateway.branches.graph.build_segments()
    assert [(chain.kind, chain.own_turns) for chain in chains] == [
        ("final", (0, 2)),
        ("side", (1,)),
    ]
    assert not [place for place in gateway.places if place.history_break]


def test_a_rollback_forks_off_the_turn_it_goes_back_to(parts: tuple[Renderer, Tokenizer]) -> None:
    gateway = PlacingGateway(*parts)
    program = Program(gateway, named=True)
    for _ in range(3):
        program.say(MAIN_THREAD, "faithful")
    back = [*program.pieces[MAIN_THREAD][:5], replace(user("No, try again."), message=3)]
    turn = gateway.ask(request(back), text="all right")
    gateway.check()
    assert gateway.turns[turn].parent == 0
    history_break = gateway.places[turn].history_break
    assert history_break is not None
    assert history_break.kind == "rewrite"
    assert gateway.places[turn].difference["after"]
    kinds = [chain.kind for chain in gateway.branches.graph.build_segments()]
    assert kinds == ["wipe", "final"]


@dataclass
class RewritingRenderer:
    """A renderer whose continuations change a token of the history that they continue."""

    real: Renderer

    def bridge_to_next_turn(self, prompt: list[int], *rest: Any, **more: Any) -> Any:
        bridged = self.real.bridge_to_next_turn(prompt, *rest, **more)
        assert bridged is not None
        bridged.token_ids[len(prompt) - 1] += 1
        return bridged

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def test_a_continuation_that_changes_sampled_history_is_a_break_and_never_a_prompt(
    parts: tuple[Renderer, Tokenizer],
) -> None:
    renderer, tokenizer = parts
    gateway = PlacingGateway(cast(Renderer, RewritingRenderer(renderer)), tokenizer)
    program = Program(gateway, named=True)
    program.say(MAIN_THREAD, "faithful")
    program.say(MAIN_THREAD, "faithful")
    gateway.check()
    place = gateway.places[1]
    assert place.parent is None
    assert place.history_break is not None
    assert place.history_break.kind == "renderer"
    assert place.history_break.reason == "the renderer's continuation changes tokens already seen"


def test_only_the_latest_ends_of_conversations_are_continued(
    parts: tuple[Renderer, Tokenizer],
) -> None:
    gateway = PlacingGateway(*parts)
    first = [user(f"conversation {number}") for number in range(MAX_TIPS + 1)]
    for piece in first:
        gateway.ask(request([piece]), text="ok")
    for piece, parent in ((first[-1], gateway.turns[-1].index), (first[0], None)):
        said = Piece(1, "assistant", "text", "ok")
        gateway.ask(request([piece, said, user("go on", 2)]), text="ok")
        assert gateway.turns[-1].parent == parent
    gateway.check()


@pytest.mark.integration
def test_a_long_session_holds_each_token_once(parts: tuple[Renderer, Tokenizer]) -> None:
    gateway = PlacingGateway(*parts)
    program = Program(gateway, named=True)
    tracemalloc.start()
    for _ in range(60):
        program.say(MAIN_THREAD, "faithful")
        *before, result = program.pieces[MAIN_THREAD]
        program.pieces[MAIN_THREAD] = [
            *before,
            replace(result, text="return a - b  # wrong\n" * 50),
        ]
    program.compact(MAIN_THREAD)
    nodes, branches = gateway.branches.graph.nodes, gateway.branches
    summary = nodes[-1]
    assert summary.parent is nodes[-2]
    tokens = sum(len(node.prompt_new) + len(node.output_ids) for node in nodes)
    assert tokens == summary.length, "every prefix is held once"
    gateway.turns, gateway.prompts, gateway.places = [], [], []
    del program, gateway
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 8 * tokens + 8192 * len(nodes), "each token once, and little besides"
    assert branches.graph.nodes


def test_threads_that_take_turns_in_turn_are_continued_in_place(
    parts: tuple[Renderer, Tokenizer],
) -> None:
    gateway = PlacingGateway(*parts)
    program = Program(gateway, named=True)
    threads = [MAIN_THREAD, "a1", "a2"]
    for _ in range(6):  # of which some find the memory full and move on
        for thread in threads:
            program.say(thread, "faithful")
    by_thread = {
        thread: [place.prompt for place in gateway.places if place.thread == thread]
        for thread in threads
    }
    for prompts in by_thread.values():
        assert any(np.shares_memory(*pair) for pair in pairwise(prompts))
        assert not any(
            np.shares_memory(prompts[-1], other[-1])
            for other in by_thread.values()
            if other is not prompts
        )
    gateway.check()


def test_a_result_finds_its_call_though_the_program_has_rewritten_its_id(
    parts: tuple[Renderer, Tokenizer],
) -> None:
    gateway = PlacingGateway(*parts)
    begun = [SYSTEM, user("the task")]
    read, run = IssuedCall("c1_f0", "Read", {}), IssuedCall("c2_f1", "Bash", {})
    gateway.ask(request(begun), read, run)
    own, other = replace(read, id="x"), replace(run, id="y")
    said = [call_of(own, 1), call_of(other, 1), result_of(other, 2), result_of(own, 2)]
    gateway.ask(request([*begun, *said]), text="done")
    place = gateway.places[1]
    assert place.first_new_piece == 4
    named = name_calls(
        group_messages(place.request.pieces[4:]), place.request.pieces, 4, own_ids=True
    )
    assert [each["tool_call_id"] for each in named] == ["functions.Bash:1", "functions.Read:0"]


def test_of_answers_that_differ_in_form_the_very_one_is_continued(
    parts: tuple[Renderer, Tokenizer],
) -> None:
    gateway = PlacingGateway(*parts)
    begun = [SYSTEM, user("the task")]
    gateway.ask(request(begun), text="a b")
    gateway.ask(replace(request(begun), max_tokens=9), text="a  b")
    for turn, text in enumerate(("a b", "a  b")):
        said = Piece(1, "assistant", "text", text)
        gateway.ask(request([*begun, said, user(f"And? {turn}", 2)]), text="done")
        assert gateway.turns[-1].parent == turn


def test_the_result_of_a_call_that_nobody_sampled_keeps_its_own_id(
    parts: tuple[Renderer, Tokenizer],
) -> None:
    gateway = PlacingGateway(*parts)
    begun = [SYSTEM, user("the task")]
    sampled, foreign = IssuedCall("c1", "Bash", {"n": 1}), IssuedCall("f1", "Bash", {"n": 2})
    gateway.ask(request(begun), sampled)
    own = replace(sampled, id="x")
    said = [call_of(own, 1), result_of(own, 2), call_of(foreign, 3), result_of(foreign, 4)]
    gateway.ask(request([*begun, *said]), text="done")
    results = [each for each in gateway.places[1].request.pieces if each.kind == "tool_result"]
    assert [each.tool_id for each in results] == ["c1", "f1"]
