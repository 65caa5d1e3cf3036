"""The agent program of a scenario: a conversation that it may edit, cut and branch as it likes.

The public methods are the steps of scenarios (``program.py``). A step that changes what was said
says what it does: ``edit`` makes another message of it, ``respell`` another form of the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.referee.clients import ApiClient
from agentrl.referee.conversation import (
    WORD,
    GatewayFault,
    Message,
    NotOffered,
    PolicyAnswer,
    PolicyCall,
    ProgramRequest,
    ProgramTurn,
    Tool,
    Words,
    find_words,
)
from agentrl.referee.policy import CueEngine

_TEXT = {"type": "string"}
TOOLS = (
    Tool("Bash", "Run a command.", {"command": _TEXT, "timeout": {"type": "number"}}),
    Tool("Read", "Read a file.", {"path": _TEXT, "limit": {"type": "integer"}}),
    Tool(
        "Edit",
        "Replace a text in a file.",
        {
            **{"path": _TEXT, "old": _TEXT, "new": _TEXT},
            "replace_all": {"type": "boolean", "default": False},
        },
    ),
    Tool("Write", "Write a file.", {"path": _TEXT, "content": _TEXT}),
)
FINAL = set(range(400, 500)) - {408, 409, 429}
"""Statuses after which clients do not repeat a request."""
ATTEMPTS = 4
"""As often a request is sent whose engine fails."""
REACH_S = 0.05
"""An engine learns so much later that a program has left."""
_REWRITES: Mapping[str, Callable[[str], list[str]]] = {
    "trim": lambda text: ["\n".join(map(str.rstrip, text.split("\n"))).strip(" ")],
    "fold": lambda text: [" ".join(text.split())],
    "split": lambda text: text.split("\n"),
    "shorten": lambda text: [text.split(".")[0] + "."],
    "append": lambda text: [f"{text} (checked)"],
    "without cd": lambda text: [text.partition(" && ")[2]],
}
"""The ways in which programs send a text again, each with its blocks."""
_FIELDS = {"texts", "thought", "native", "absent", "key"}
"""Of a message; other changes are of arguments."""


class ScenarioStopped(Exception):
    """The scenario cannot go on: a request got no answer, or an answer came without its calls."""


def call(name: str, text: str = "", /, **arguments: Any) -> PolicyCall:
    """Return a call of the policy, whose arguments are no object if ``text`` stands for them."""
    return PolicyCall(name, text or arguments)


def say(text: str = "", *calls: PolicyCall, thought: str = "", **more: Any) -> PolicyAnswer:
    """Return an answer of the policy; its text and its thought hold a word."""
    return PolicyAnswer(_with_word(text), calls, _with_word(thought), **more)


def _with_word(text: str) -> str:
    return f"{text} {{w}}" if text and "{w}" not in text else text


@dataclass(slots=True)
class AgentSession:
    """One session with a gateway, and everything that happens in it."""

    client: ApiClient
    engine: CueEngine
    words: Words
    stream: bool = False
    turns: list[ProgramTurn] = field(default_factory=list)
    """In the order in which they were answered."""
    keys: int = 0
    """Messages that were made so far."""


class ScriptedAgent:
    """A program with one conversation; its branches and sub-agents share the session."""

    def __init__(self, session: AgentSession, system_prompt: str = "You fix bugs.") -> None:
        self._session = session
        self._fill = session.words.fill
        self._system: str = self._fill(_with_word(system_prompt))
        self._tools: tuple[Tool, ...] = TOOLS
        self._history: list[Message] = []

    # --- what it says ---------------------------------------------------------------------------

    def user(self, *texts: str, role: str = "user", **how: Any) -> None:
        """Add a message of the user, or a later one of the system, of one block or more."""
        self._add(role, texts, **how)

    def result(self, text: str = "ok {w}", number: int = 0, *, repeat: int = 1, **how: Any) -> None:
        """Add the result of a call of the last answer with calls."""
        self._add("tool", (text * repeat,), call_id=self._last_call(number).id, **how)

    def respond(self) -> None:
        """Add results of the calls that the program got; without one, a message of the user."""
        calls = self._history[-1].calls
        for number in range(len(calls)):
            self.result("no such thing {w}", number)
        if not calls:
            self.user("That was no call.")

    def assistant(self, text: str = "", *calls: PolicyCall) -> None:
        """Add an answer that nobody sampled."""
        made = self._fill(tuple(replace(each, id="c_{w}") for each in calls))
        self._add("assistant", (text,) if text else (), calls=made)

    def _add(self, role: Any, texts: Sequence[str], **how: Any) -> None:
        filled = [self._fill(text) for text in texts]
        if filled and filled[-1] and not find_words(*filled):
            filled[-1] = self._fill(f"{filled[-1]} {{w}}")
        self._history.append(Message(role, tuple(filled), key=self._new_key(), **how))

    def _new_key(self) -> int:
        self._session.keys += 1
        return self._session.keys

    # --- turns ----------------------------------------------------------------------------------

    async def turn(
        self,
        *answers: PolicyAnswer,
        stream: bool | None = None,
        optional: bool = False,
        **request: Any,
    ) -> None:
        """Ask for an answer, which ``answers`` script, and add it to the conversation.

        A fault among them may reach the program, which then repeats its request. ``optional``: the
        gateway may refuse such a request. Raises NotOffered and ScenarioStopped.
        """
        self._session.engine.script(self._cue(), self._fill(answers))
        attempts = ATTEMPTS if any(answer.fault for answer in answers) else 1
        stream = self._session.stream if stream is None else stream
        asked = self._request(**request)
        for left in reversed(range(attempts)):
            try:
                reply = await self._session.client.send(asked, stream=stream)
            except GatewayFault as fault:
                if optional and 400 <= fault.status < 500:
                    raise NotOffered(str(fault)) from fault
                again = left > 0 and fault.status not in FINAL
                self._note(asked, None, str(fault), fault.status, may_fail=again)
                if not again:
                    raise ScenarioStopped(str(fault)) from fault
                await asyncio.sleep(REACH_S)
                continue
            reply = replace(reply, key=reply.key or self._new_key())
            self._note(asked, reply, status=200)
            self._history.append(reply)
            return

    async def leave(self, answer: PolicyAnswer) -> None:
        """Ask, and close the connection while the policy answers."""
        cue, asked = self._cue(), self._request()
        engine, send = self._session.engine, self._session.client.send
        engine.script(cue, [self._fill(replace(answer, hold=True))])
        task = asyncio.ensure_future(send(asked, stream=self._session.stream))
        try:
            await engine.wait(cue)
        except TimeoutError as error:
            raise ScenarioStopped("the engine was not asked") from error
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, GatewayFault):
                await task
            await asyncio.sleep(REACH_S)
            engine.release(cue)
        self._note(asked, None, may_fail=True)

    async def work(
        self,
        times: int = 1,
        *calls: PolicyCall,
        text: str = "",
        thought: str = "",
        odd: bool = False,
        fault: str = "",
        **how: Any,
    ) -> None:
        """Take turns that call tools, and give the results; ``fault``: the engine fails first."""
        for _ in range(times):
            made = calls or (call("Bash", command="run {w}"),)
            answer = say(text, *made, thought=thought, odd=odd)
            await self.turn(*([replace(answer, fault=fault)] if fault else []), answer, **how)
            for number in range(len(made)):
                self.result(f"output {number} {{w}}", number)

    async def end(self, text: str = "Done.", *, thought: str = "", **how: Any) -> None:
        """Take a turn that answers with text."""
        await self.turn(say(text, thought=thought, **how))

    def version(self, number: int) -> None:
        """Give the engine other weights."""
        self._session.engine.version = number

    def _cue(self) -> str:
        """Return the word that stands last in what the program has said."""
        for message in reversed(self._history):
            if message.role != "assistant" and (words := WORD.findall(message.text)):
                return str(words[-1])
        raise ScenarioStopped("the program has not said anything")

    def _request(self, **changes: Any) -> ProgramRequest:
        return ProgramRequest(self._system, self._tools, tuple(self._history), **changes)

    def _note(self, *turn: Any, **how: Any) -> None:
        self._session.turns.append(ProgramTurn(len(self._session.turns), *turn, **how))

    # --- other conversations --------------------------------------------------------------------

    def branch(self) -> ScriptedAgent:
        """Return a program that goes on from here by itself."""
        twin = ScriptedAgent(self._session)
        twin._system, twin._tools, twin._history = self._system, self._tools, list(self._history)
        return twin

    def subagent(self) -> ScriptedAgent:
        """Return a program with a system prompt of its own."""
        return ScriptedAgent(self._session, "You explore.")

    def system(self, text: str) -> None:
        """Go on with another system prompt."""
        self._system = self._fill(text)

    def tools(self, change: str) -> None:
        """``add`` a tool, ``remove`` the last one, ``reverse``, ``replace`` all, or have none."""
        more = Tool(f"Search_{self._fill('{w}')}", "Search the web.", {"query": _TEXT})
        self._tools = {
            "add": (*self._tools, more),
            "remove": self._tools[:-1],
            "reverse": self._tools[::-1],
            "replace": (Tool("Shell", "Run.", {"line": _TEXT}),),
            "none": (),
        }[change]

    # --- what it does to its conversation -------------------------------------------------------

    def cut(self, count: int) -> None:
        """Take the last messages away."""
        del self._history[-count:]

    def rewind(self) -> None:
        """Take the last answer away, with what followed it."""
        del self._history[self._places()[-1] :]

    def drop_exchange(self, number: int) -> None:
        """Take an answer away, with its results."""
        at = self._places()[number]
        del self._history[at]
        while at < len(self._history) and self._history[at].role == "tool":
            del self._history[at]

    def go_on(self) -> None:
        """Let the user speak, if an answer has the last word."""
        if not self._history or self._history[-1].role == "assistant":
            self.user("Go on.")

    def drop(self, at: int) -> None:
        """Take one message away."""
        del self._history[at]

    def change(self, at: int, *texts: str) -> None:
        """Replace a message of the user, or a result, by another one."""
        new = {"texts": self._fill(texts), "key": self._new_key()}
        self._history[at] = replace(self._history[at], **new)

    def compact(self, keep: int = 0) -> None:
        """Replace the conversation, but for its last messages, by a summary."""
        kept = self._history[-keep:] if keep else []
        self._history = []
        self.user("This session goes on from a summary: the bug is in calc.py.")
        self._history += kept

    def edit(self, number: int = -1, **how: Any) -> None:
        """Make another message of an answer, by its number among the answers: see ``_change``."""
        self._change(number, **how, key=self._new_key())

    def respell(self, number: int = -1, **how: Any) -> None:
        """Send an answer in another form, which says the same: see ``_change``."""
        self._change(number, **how)

    def _change(
        self,
        number: int,
        *,
        how: str = "",
        of: str = "",
        name: str = "",
        keep: Sequence[int] | None = None,
        **changes: Any,
    ) -> None:
        """Change fields of an answer, or arguments of its first call: None takes one away.

        ``how``: see ``_REWRITES``, of its text, or ``of`` an argument; ``name``: of its first call;
        ``keep``: the calls that stay, in this order.
        """
        at = self._places()[number]
        old, changes = self._history[at], self._fill(changes)
        fields = {key: changes.pop(key) for key in _FIELDS & changes.keys()}
        if how and not of:
            fields["texts"] = _REWRITES[how](old.text)
        calls = list(old.calls)
        if of or name or changes:
            if not calls:
                raise ScenarioStopped("the program got an answer without calls")
            first = calls[0]
            if of:
                changes[of] = _REWRITES[how](str(first.arguments[of]))[0]
            values = changes | {k: v for k, v in first.arguments.items() if k not in changes}
            kept = {key: value for key, value in values.items() if value is not None}
            calls[0] = replace(first, arguments=kept, name=name or first.name)
        fields["texts"] = tuple(fields.get("texts", old.texts))
        fields["calls"] = tuple(calls if keep is None else (calls[kept] for kept in keep))
        self._history[at] = replace(old, **fields)

    def flip_lists(self) -> None:
        """Send what was a list of blocks as one text, and the other way round."""
        self._history = [replace(message, is_list=not message.is_list) for message in self._history]

    def mark_newest(self) -> None:
        """Put the mark for a cache at the newest message, and nowhere else."""
        *others, newest = [replace(message, marked=False) for message in self._history]
        self._history = [*others, replace(newest, marked=True)]

    def ids(self, change: str) -> None:
        """Send calls' ids without punctuation (``clean``), or numbered anew (``number``)."""
        known = [made.id for message in self._history for made in message.calls]
        cleaned = ("".join(filter(str.isalnum, each)) for each in known)
        new = cleaned if change == "clean" else (f"c{number}" for number in range(len(known)))
        ids = dict(zip(known, new, strict=True))
        self._history = [
            replace(
                message,
                calls=tuple(replace(made, id=ids[made.id]) for made in message.calls),
                call_id=ids.get(message.call_id, message.call_id),
            )
            for message in self._history
        ]

    def _places(self) -> list[int]:
        return [at for at, message in enumerate(self._history) if message.role == "assistant"]

    def _last_call(self, number: int) -> PolicyCall:
        calls = next((each.calls for each in reversed(self._history) if each.calls), ())
        if number >= len(calls):
            raise ScenarioStopped(f"call {number} of the policy did not reach the program")
        return calls[number]
