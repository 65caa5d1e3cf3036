"""The agent program of a scenario: a conversation that it may edit, cut and branch as it likes.

The public methods are the steps of scenarios (``program.py``).
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
    renumber,
)
from agentrl.referee.engine import ScenarioEngine

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
    "without cd": lambda text: [text.partition(" && ")[2]],
}
"""The ways in which programs send a text again, each with its blocks."""


class ScenarioStopped(Exception):
    """The scenario cannot go on: a request got no answer, or an answer came without its calls."""


def call(name: str, **arguments: Any) -> PolicyCall:
    """Return a call of the policy; ``{w}`` in an argument becomes a new word."""
    return PolicyCall(name, arguments)


def say(text: str = "", *calls: PolicyCall, thought: str = "", **more: Any) -> PolicyAnswer:
    """Return an answer of the policy; its text and its thought hold a word."""
    return PolicyAnswer(_with_word(text), calls, _with_word(thought), **more)


def raw(text: str, **more: Any) -> PolicyAnswer:
    """Return an answer of the policy that is no well-formed one."""
    return PolicyAnswer(raw=text, **more)


def _with_word(text: str) -> str:
    return f"{text} {{w}}" if text and "{w}" not in text else text


@dataclass(slots=True)
class AgentSession:
    """One session with a gateway, and everything that happens in it."""

    client: ApiClient
    engine: ScenarioEngine
    words: Words
    stream: bool = False
    turns: list[ProgramTurn] = field(default_factory=list)
    """In the order in which they were answered."""
    asked: int = 0


class ScriptedAgent:
    """A program with one conversation; its branches and sub-agents share the session."""

    def __init__(self, session: AgentSession, system_prompt: str = "You fix bugs.") -> None:
        self._session = session
        self._fill = session.words.fill
        self._system: str = self._fill(_with_word(system_prompt))
        self._tools: tuple[Tool, ...] = TOOLS
        self.history: list[Message] = []

    # --- what it says ---------------------------------------------------------------------------

    def user(self, *texts: str, **how: Any) -> None:
        """Add a message of the user, of one block or more."""
        self._add("user", texts, **how)

    def result(self, text: str = "ok {w}", number: int = 0, *, repeat: int = 1, **how: Any) -> None:
        """Add the result of a call of the last answer with calls."""
        self._add("tool", (text * repeat,), call_id=self._last_call(number).id, **how)

    def respond(self) -> None:
        """Add results of the calls that the program got; without one, a message of the user."""
        calls = self.history[-1].calls
        for number in range(len(calls)):
            self.result("no such thing {w}", number)
        if not calls:
            self.user("That was no call.")

    def later_system(self, text: str) -> None:
        """Add a system message inside of the conversation."""
        self._add("system", (text,))

    def assistant(self, text: str = "", *calls: PolicyCall) -> None:
        """Add an answer that nobody sampled."""
        made = [
            replace(each, arguments=self._fill(each.arguments), id=self._fill("c_{w}"))
            for each in calls
        ]
        self._add("assistant", (text,) if text else (), calls=tuple(made))

    def _add(self, role: Any, texts: Sequence[str], **how: Any) -> None:
        filled = [self._fill(text) for text in texts]
        if filled and filled[-1] and not find_words(*filled):
            filled[-1] = self._fill(f"{filled[-1]} {{w}}")
        self.history.append(Message(role, tuple(filled), **how))

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
        scripted = await self._script(answers)
        attempts = ATTEMPTS if any(answer.fault for answer in scripted) else 1
        asked = self._request(**request)
        for left in reversed(range(attempts)):
            number = self._next_number()
            try:
                reply = await self._session.client.send(asked, stream=self._streams(stream))
            except GatewayFault as fault:
                if optional and 400 <= fault.status < 500:
                    raise NotOffered(str(fault)) from fault
                again = left > 0 and fault.status not in FINAL
                failed = ProgramTurn(number, asked, None, str(fault), fault.status, may_fail=again)
                self._session.turns.append(failed)
                if not again:
                    raise ScenarioStopped(str(fault)) from fault
                await asyncio.sleep(REACH_S)
                continue
            self._session.turns.append(ProgramTurn(number, asked, reply))
            self.history.append(reply.message(number))
            return

    async def leave(self, answer: PolicyAnswer) -> None:
        """Ask, and close the connection while the policy answers."""
        await self._script([replace(answer, hold=True)])
        cue, asked, number = self._cue(), self._request(), self._next_number()
        engine, send = self._session.engine, self._session.client.send
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
            await engine.release(cue)
        self._session.turns.append(ProgramTurn(number, asked, None, cancelled=True, may_fail=True))

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

    async def version(self, number: int) -> None:
        """Give the engine other weights."""
        await self._session.engine.set_version(number)

    async def _script(self, answers: Sequence[PolicyAnswer]) -> list[PolicyAnswer]:
        fill = self._fill
        filled = [
            replace(
                answer,
                text=fill(answer.text),
                thought=fill(answer.thought),
                calls=tuple(replace(each, arguments=fill(each.arguments)) for each in answer.calls),
                raw=None if answer.raw is None else fill(answer.raw),
            )
            for answer in answers
        ]
        await self._session.engine.script(self._cue(), filled)
        return filled

    def _cue(self) -> str:
        """Return the word that stands last in what the program has said."""
        for message in reversed(self.history):
            if message.role != "assistant" and (words := WORD.findall(message.text)):
                return str(words[-1])
        raise ScenarioStopped("the program has not said anything")

    def _request(self, **changes: Any) -> ProgramRequest:
        return ProgramRequest(self._system, self._tools, tuple(self.history), **changes)

    def _streams(self, stream: bool | None) -> bool:
        return self._session.stream if stream is None else stream

    def _next_number(self) -> int:
        self._session.asked += 1
        return self._session.asked - 1

    # --- other conversations --------------------------------------------------------------------

    def make_branch(self) -> ScriptedAgent:
        """Return a program that goes on from here by itself."""
        twin = ScriptedAgent(self._session)
        twin._system, twin._tools, twin.history = self._system, self._tools, list(self.history)
        return twin

    def make_subagent(self) -> ScriptedAgent:
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
        del self.history[-count:]

    def rewind(self) -> None:
        """Take the last answer away, with what followed it."""
        del self.history[self._places()[-1] :]

    def drop_exchange(self, number: int) -> None:
        """Take an answer away, with its results."""
        at = self._places()[number]
        del self.history[at]
        while at < len(self.history) and self.history[at].role == "tool":
            del self.history[at]

    def go_on(self) -> None:
        """Let the user speak, if an answer has the last word."""
        if not self.history or self.history[-1].role == "assistant":
            self.user("Go on.")

    def drop(self, at: int) -> None:
        """Take one message away."""
        del self.history[at]

    def swap(self, one: int, other: int) -> None:
        """Let two messages change places."""
        held = self.history
        held[one], held[other] = held[other], held[one]

    def change(self, at: int, *texts: str) -> None:
        """Replace the text of a message."""
        self.history[at] = replace(self.history[at], texts=tuple(map(self._fill, texts)))

    def compact(self, keep: int = 0) -> None:
        """Replace the conversation, but for its last messages, by a summary."""
        kept = self.history[-keep:] if keep else []
        self.history = []
        self.user("This session goes on from a summary: the bug is in calc.py.")
        self.history += kept

    def edit(self, number: int = -1, **changes: Any) -> None:
        """Change fields of an answer, by its number among the answers."""
        at = self._places()[number]
        filled: dict[str, Any] = {
            key: tuple(self._fill(value)) if isinstance(value, list) else value
            for key, value in changes.items()
        }
        self.history[at] = replace(self.history[at], **filled)

    def edit_call(self, number: int = -1, **arguments: Any) -> None:
        """Set arguments of an answer's first call; None takes one away."""
        first, *others = self.history[self._places()[number]].calls or (self._last_call(0),)
        changed = {**first.arguments, **self._fill(arguments)}
        kept = {key: value for key, value in changed.items() if value is not None}
        self.edit(number, calls=(replace(first, arguments=kept), *others))

    def rewrite_call(self, key: str, how: str) -> None:
        """Change an argument of the last call: see ``_REWRITES``."""
        changed: dict[str, Any] = {}
        changed[key] = _REWRITES[how](str(self._last_call(0).arguments.get(key)))[0]
        self.edit_call(**changed)

    def reorder_arguments(self) -> None:
        """Send arguments in another order, and 10.0 as 10."""
        made = self._last_call(0)
        pairs = reversed(list(made.arguments.items()))
        numbers = {key: int(it) if isinstance(it, float) else it for key, it in pairs}
        self.edit(calls=(replace(made, arguments=numbers),))

    def rename(self, name: str) -> None:
        """Send a call under another name."""
        self.edit(calls=(replace(self._last_call(0), name=name),))

    def keep_calls(self, *numbers: int) -> None:
        """Keep these calls of the last answer, in this order."""
        self.edit(calls=tuple(self._last_call(number) for number in numbers))

    def rewrite(self, how: str, text: str = "") -> None:
        """Change the text of the last answer: see ``_REWRITES``; ``text``: what is appended."""
        last = self.history[self._places()[-1]]
        self.edit(texts=_REWRITES[how](last.text) if how != "append" else [last.text + text])

    def forget_thoughts(self, text: str = "") -> None:
        """Send no thought, or another one, with the last answer."""
        self.edit(thought=text, native=None)

    def flip_lists(self) -> None:
        """Send what was a list of blocks as one text, and the other way round."""
        self.history = [replace(message, is_list=not message.is_list) for message in self.history]

    def mark_newest(self) -> None:
        """Put the mark for a cache at the newest message, and nowhere else."""
        *others, newest = [replace(message, marked=False) for message in self.history]
        self.history = [*others, replace(newest, marked=True)]

    def ids(self, change: str) -> None:
        """Send calls' ids without punctuation (``clean``), or numbered anew (``number``)."""
        known = [made.id for message in self.history for made in message.calls]
        cleaned = ("".join(filter(str.isalnum, each)) for each in known)
        new = cleaned if change == "clean" else (f"c{number}" for number in range(len(known)))
        self.history = renumber(self.history, dict(zip(known, new, strict=True)))

    def _places(self) -> list[int]:
        return [at for at, message in enumerate(self.history) if message.role == "assistant"]

    def _last_call(self, number: int) -> PolicyCall:
        calls = next((each.calls for each in reversed(self.history) if each.calls), ())
        if number >= len(calls):
            raise ScenarioStopped(f"call {number} of the policy did not reach the program")
        return calls[number]
