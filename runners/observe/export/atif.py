"""Writes ``atif/``: one document per rollout in Harbor's Agent Trajectory Interchange Format,
ATIF-v1.7 (https://github.com/harbor-framework/harbor/blob/main/rfcs/0001-trajectory-format.md).

The root document is the main thread in order of time, across compactions. Where a history was
abandoned, a system step says why, and messages that the next prompt repeats are marked
``is_copied_context``. Sub-agents are embedded in the document of the thread that dispatched them,
summaries and side queries in that of their own thread. The result of a tool call refers to the
sub-agent that was given the call's text.

A prompt is given in full (``prompt_token_ids``) where it was rendered whole. Elsewhere
``metrics.extra`` has the number of tokens kept from an earlier turn and the ids that were added;
``extra.after_turn`` names that turn if it is not the previous step. A document therefore grows with
its tokens, not with their square.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from runners.observe.export.contract import AddRollout, ExportedRollout, ExportedRun
from runners.observe.export.conversation import Message, latest_tools
from runners.records.record import MAIN_THREAD as MAIN
from runners.records.record import Turn
from runners.records.text import dumps

VERSION = "ATIF-v1.7"
"""The oldest version with embedded sub-agents; 1.8 adds only audio."""
_SOURCES = {"assistant": "agent", "user": "user"}

Document = dict[str, Any]


@contextmanager
def write_atif(folder: Path, run: ExportedRun) -> Iterator[AddRollout]:
    """Write ``atif/ROLLOUT.json`` per rollout."""
    place = folder / "atif"
    place.mkdir()

    def add(rollout: ExportedRollout) -> None:
        path = place / f"{rollout.record.rollout_id}.json"
        path.write_bytes(dumps(build_document(rollout, run)).encode())

    yield add


def build_document(rollout: ExportedRollout, run: ExportedRun) -> Document:
    """Return the ATIF document of a rollout."""
    record, turns = rollout.record, rollout.turns
    agent = _agent(run)
    threads: dict[str, _Thread] = {MAIN: _Thread(record.rollout_id, None, agent)}
    for turn in turns:
        thread = threads.get(turn.thread)
        if thread is None:
            name = f"{record.rollout_id}/{turn.thread}"
            thread = threads[turn.thread] = _Thread(name, turn.parent_thread or MAIN, agent)
        if turn.branch in ("main", "subagent"):
            thread.add_turn(turn)
        else:
            thread.embed_aside(turn, turns)
    for name, thread in reversed(threads.items()):  # inner ones first
        if name != MAIN:
            above = threads.get(thread.parent or MAIN, threads[MAIN])
            (threads[MAIN] if above is thread else above).embed_subagent(thread)
    root = threads[MAIN]
    if not root.steps:  # a document has at least one
        root.add_note(f"no model call: {record.outcome.code}: {record.outcome.message}")
    trajectory = rollout.trajectory
    return root.document(record.session_id) | {
        "extra": {
            key: trajectory[key]
            for key in (
                *("run", "step", "split", "group", "member", "attempt", "task", "scenario"),
                *("outcome", "reward", "advantage", "tokens", "timings", "patch", "verdict"),
            )
        }
    }


def _agent(run: ExportedRun) -> dict[str, Any]:
    try:
        own = version("agentrl-campaigns")
    except PackageNotFoundError:
        own = "unknown"  # run from a source tree
    name = run.kind("harness", "native")
    return {
        "name": name,
        "version": own if name == "native" else "unknown",
        "model_name": run.kind("model", "unknown"),
    }


@dataclass(slots=True)
class _Thread:
    """A document under construction; mutated by the ``add`` and ``embed`` methods."""

    name: str
    """Its trajectory_id."""
    parent: str | None
    """The thread that dispatched it."""
    agent: dict[str, Any]
    steps: list[Document] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    embedded: list[Document] = field(default_factory=list)
    summary: str | None = None
    """Document of the last summary, until a history that begins with it refers to it."""
    _calls: dict[str, Document] = field(default_factory=dict)
    """Step of each tool call, by id."""

    def add_turn(self, turn: Turn) -> None:
        """Add a turn of the thread itself: its new messages and its reply."""
        last = self.turns[-1] if self.turns else None
        whole = turn.parent is None
        if last is not None and turn.parent != last.index:
            reason = turn.break_reason or "history left"
            step = self.add_note(reason, break_before_turn=turn.index, after_turn=turn.parent)
            if self.summary is not None:
                refs = [{"trajectory_id": self.summary}]
                step["observation"] = {"results": [{"subagent_trajectory_ref": refs}]}
                self.summary = None
        self.add_messages(turn.request.get("messages", []), copied=whole and last is not None)
        self.add_reply(turn)

    def embed_aside(self, turn: Turn, turns: list[Turn]) -> None:
        """Embed a turn that leaves the thread's history as it is: a summary, a side query."""
        # a turn that continues another such turn belongs to the same chain, and to one document
        path = [turn]
        while path[0].parent is not None and turns[path[0].parent].segment == turn.segment:
            path.insert(0, turns[path[0].parent])
        inner = _Thread(f"{self.name}/{turn.branch}-{turn.segment}", None, self.agent)
        for each in path:
            inner.add_messages(each.request.get("messages", []), copied=False)
            inner.add_reply(each)
        self.embedded = [one for one in self.embedded if one["trajectory_id"] != inner.name]
        about = {"kind": turn.branch, "after_turn": path[0].parent}
        self.embedded.append(inner.document() | {"extra": about})
        if turn.branch == "compaction":
            self.summary = inner.name

    def embed_subagent(self, thread: _Thread) -> None:
        """Embed a sub-agent, and refer to it from the tool call that dispatched it, if one did."""
        inner = thread.document()
        about: dict[str, Any] = {"kind": "subagent"}
        if thread.turns:
            first = thread.turns[0]
            about["after_turn"] = first.parent
            about["agent_type"] = first.request.get("agent_type")
        self.embedded.insert(0, inner | {"extra": about})
        prompt = "\n".join(
            _text(step["message"]) for step in inner["steps"] if step["source"] == "user"
        )
        for call_id, step in self._calls.items():
            for call in step["tool_calls"]:
                if call["tool_call_id"] == call_id and _dispatches(call, prompt):
                    result = self._result(call_id, step)
                    if "subagent_trajectory_ref" not in result:
                        result["subagent_trajectory_ref"] = [{"trajectory_id": thread.name}]
                        return

    def add_messages(self, messages: Iterable[Message], *, copied: bool) -> None:
        """Add a request's new messages; ``copied``: they repeat a history, all but the new ones."""
        known = {_key(step) for step in self.steps} if copied else set()
        for message in messages:
            role = message.get("role")
            if role == "tool" and self._add_tool_result(message):
                continue
            step = self._step(_SOURCES.get(str(role), "system"), message)
            if role == "tool":  # of an unknown call, or a second result of a call
                step["extra"] = {"tool_call_id": message.get("tool_call_id")}
            if copied and (role == "assistant" or _key(step) in known):
                step["is_copied_context"] = True
            if role == "assistant":
                self._add_policy_parts(step, message, f"copied-{step['step_id']}")

    def add_reply(self, turn: Turn) -> None:
        """Add the reply that the policy sampled."""
        step = self._step("agent", turn.reply)
        step["timestamp"] = datetime.fromtimestamp(turn.started_at, UTC).isoformat()
        step["llm_call_count"] = 1
        self._add_policy_parts(step, turn.reply, f"turn-{turn.index}")
        step["metrics"] = {
            "prompt_tokens": turn.prompt_tokens,
            "completion_tokens": turn.output_tokens,
            "cached_tokens": turn.cached_tokens,
            **(_token_ids(turn) if turn.has_ids else {}),
        }
        step["extra"] = {
            "turn": turn.index,
            "segment": turn.segment,
            "weight_version": turn.weight_version,
            "finish_reason": turn.finish_reason,
            "malformed_calls": turn.malformed_calls,
            "engine_s": turn.engine_s,
            "total_s": turn.total_s,
        }
        self.turns.append(turn)

    def add_note(self, message: str, **extra: Any) -> Document:
        """Add a system step, which no request had."""
        step = self._step("system", {"content": message})
        if extra:
            step["extra"] = extra
        return step

    def document(self, session_id: str | None = None) -> Document:
        """Return the thread's document."""
        steps, turns = self.steps, self.turns
        offered = latest_tools(turns)
        document: Document = {
            "schema_version": VERSION,
            "trajectory_id": self.name,
            "agent": self.agent | ({"tool_definitions": offered} if offered else {}),
            "steps": steps,
            "final_metrics": {
                "total_prompt_tokens": sum(turn.prompt_tokens for turn in turns),
                "total_completion_tokens": sum(turn.output_tokens for turn in turns),
                "total_cached_tokens": sum(turn.cached_tokens for turn in turns),
                "total_steps": len(steps),
            },
        }
        if session_id is not None:
            document["session_id"] = session_id
        if self.embedded:
            document["subagent_trajectories"] = self.embedded
        return document

    def _step(self, source: str, message: Message) -> Document:
        step: Document = {
            "step_id": len(self.steps) + 1,
            "source": source,
            "message": _text(message.get("content")),
        }
        self.steps.append(step)
        return step

    def _add_policy_parts(self, step: Document, message: Message, name: str) -> None:
        """Add reasoning and tool calls to an agent's step; ``name`` replaces missing call ids."""
        if message.get("reasoning_content"):
            step["reasoning_content"] = _text(message["reasoning_content"])
        calls = [_call(call, f"{name}-{n}") for n, call in enumerate(_calls(message))]
        if calls:
            step["tool_calls"] = calls
            self._calls.update((call["tool_call_id"], step) for call in calls)

    def _add_tool_result(self, message: Message) -> bool:
        """Add a tool's message to the step that called it; return False if that has another one."""
        call = str(message.get("tool_call_id"))
        if call not in self._calls:
            return False
        text, result = _text(message.get("content")), self._result(call, self._calls[call])
        return bool(result.setdefault("content", text) == text)

    @staticmethod
    def _result(call: str, step: Document) -> Document:
        """Return the result of a call in its step; add an empty one if it is missing."""
        results: list[Document] = step.setdefault("observation", {"results": []})["results"]
        for result in results:
            if result["source_call_id"] == call:
                return result
        results.append({"source_call_id": call})
        return results[-1]


def _token_ids(turn: Turn) -> dict[str, Any]:
    """Return the ids and logprobs of a turn's metrics."""
    ids: dict[str, Any] = {
        "completion_token_ids": turn.output_ids,
        "logprobs": turn.output_logprobs,
    }
    if turn.parent is None:
        return {**ids, "prompt_token_ids": turn.prompt_new}
    kept, added = turn.prompt_kept, turn.prompt_new
    return {**ids, "extra": {"prompt_tokens_kept": kept, "prompt_token_ids_added": added}}


def _calls(message: Message) -> list[Any]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _call(call: Any, name: str) -> Document:
    function = call.get("function", {}) if isinstance(call, dict) else {}
    arguments = function.get("arguments")
    return {
        "tool_call_id": str(call.get("id") or name) if isinstance(call, dict) else name,
        "function_name": str(function.get("name", "")),
        "arguments": arguments if isinstance(arguments, dict) else {"unparsed": arguments},
    }


def _dispatches(call: Document, prompt: str) -> bool:
    """Return whether the longest text of a call is in a sub-agent's prompt."""
    texts = [value for value in call["arguments"].values() if isinstance(value, str)]
    longest = max(texts, key=len, default="")
    return bool(longest.strip()) and longest in prompt


def _key(step: Document) -> tuple[str, str]:
    return step["source"], step["message"]


def _text(content: Any) -> str:
    """Return a message's content as one text."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text", f"[{part.get('type')}]")) if isinstance(part, dict) else str(part)
            for part in content
        )
    return str(content)
