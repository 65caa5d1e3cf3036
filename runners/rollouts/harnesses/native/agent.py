"""The native agent: one loop and a few tools, on Python's standard library; runs in the sandbox.

``main`` reads the problem statement from stdin, and from the environment ``ANTHROPIC_BASE_URL``,
``ANTHROPIC_API_KEY`` and ``ANTHROPIC_MODEL``. Assistant messages go back exactly as they came, so
each prompt continues the one before. In a dispatching scenario the main agent cannot read: it sends
an investigator with its own thread, system prompt and shell. In a compacting scenario a
history that outgrows its window is replaced by the policy's own summary. The last line printed is
one JSON object: ``code`` (a value of ``OutcomeCode``), ``final_message``, ``finish_reason``,
``turns``.
"""

# ruff: noqa: PTH123 (pathlib takes 4 ms to import)

from __future__ import annotations

import json
import os
import signal
import sys

from .client import ENGINE_DOWN, Messages, TurnError

TYPE_CHECKING = False  # as ``typing.TYPE_CHECKING``, which would cost an import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SYSTEM = "Solve the task, then Submit."
INVESTIGATE = "Look, then Submit what you found."
SUMMARIZE = "Sum up what you know."
CONTINUED = "Known so far:"
REST_TURNS = 3
"""Turns without another summary after one, however small the window."""
OUTPUT_BYTES = 8000
EDIT_BYTES = 8 << 20
"""Largest file that Edit reads; a patch may change no larger one."""
MESSAGE_CHARACTERS = 100_000
"""Of the final message: the host reads the last line within a limit on the whole output."""
BASH_S = 30


class ToolError(Exception):
    """A tool call that failed; its text goes to the policy."""


def read(path: str) -> str:
    """Return a file's text."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else opening a FIFO blocks
    try:
        return read_ends(file)
    finally:
        os.close(file)


def edit(path: str, old_string: str, new_string: str) -> str:
    """Replace the one occurrence of ``old_string``."""
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 (pathlib is slow)
        raise ToolError("not a regular file")
    with open(path, "r+", encoding="utf-8", newline="") as file:
        text = file.read(EDIT_BYTES + 1)
        if len(text) > EDIT_BYTES:
            raise ToolError("the file is too large")
        found = text.count(old_string) if old_string else 0
        if found != 1:
            raise ToolError(f"old_string occurs {found} times")
        file.seek(0)
        file.write(text.replace(old_string, new_string))
        file.truncate()
    return "ok"


def bash(command: str, limit_s: float = BASH_S) -> str:
    """Run a command, then kill everything that it left running."""
    import select

    # Output goes to a file, not a pipe: a background child that keeps a pipe open would hang us.
    output = os.memfd_create("output")
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANTHROPIC_")}
    streams = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)]
    streams += [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]  # type: ignore[list-item]
    argv = ["bash", "-c", command]
    child = os.posix_spawn(
        "/bin/bash", argv, env, file_actions=streams, setpgroup=0, setsigdef=[signal.SIGPIPE]
    )
    ended = select.poll()
    handle = os.pidfd_open(child)
    ended.register(handle, select.POLLIN)
    in_time = ended.poll(limit_s * 1000)
    os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = read_ends(output)
    os.close(handle)
    os.close(output)
    if not in_time:
        raise ToolError(f"{text}\nkilled after {limit_s} s")
    if code != 0:
        raise ToolError(f"{text}\nexit code {code}".lstrip())
    return text


def read_ends(file: int) -> str:
    """Return an open file's text; the middle of a long one is left out."""
    size, half = os.fstat(file).st_size, OUTPUT_BYTES // 2
    if size <= OUTPUT_BYTES:
        return os.pread(file, OUTPUT_BYTES, 0).decode(errors="replace")
    ends = os.pread(file, half, 0), os.pread(file, half, size - half)
    return "\n...\n".join(end.decode(errors="replace") for end in ends)


def _tool(name: str, description: str, *arguments: str) -> dict[str, Any]:
    properties = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"name": name, "description": description, "input_schema": schema}


READ = _tool("Read", "Read a file.", "path")
EDIT = _tool("Edit", "Replace text in a file.", "path", "old_string", "new_string")
BASH = _tool("Bash", "Run a command.", "command")
AGENT = _tool("Agent", "Send an agent to look.", "prompt")
SUBMIT = _tool("Submit", "Finish.", "message")
TOOLS = [READ, EDIT, BASH, SUBMIT]
DISPATCHER_TOOLS = [AGENT, EDIT, SUBMIT]
INVESTIGATOR_TOOLS = [BASH, SUBMIT]
TOOL_FUNCTIONS: dict[str, Callable[..., str]] = {"Read": read, "Edit": edit, "Bash": bash}


def user_message(problem: str) -> dict[str, Any]:
    """Return the conversation's first message."""
    return {"role": "user", "content": problem}


def find_fault(name: str, arguments: object, tools: list[dict[str, Any]]) -> str:
    """Return the fault of a tool call as a message to the policy, "" if there is none."""
    wanted = {tool["name"]: tool["input_schema"]["required"] for tool in tools}.get(name)
    if wanted is None:
        return f"no tool {name}"
    if not isinstance(arguments, dict) or set(arguments) != set(wanted):
        return f"{name} takes {', '.join(wanted)}"
    if not all(isinstance(value, str) for value in arguments.values()):
        return f"{name} takes strings"
    return ""


def run_tool(name: str, arguments: dict[str, str]) -> tuple[str, bool]:
    """Run one tool in the current directory; return its text and whether it failed."""
    try:
        return TOOL_FUNCTIONS[name](**arguments), False
    except ToolError as error:
        return str(error), True
    except OSError as error:
        return error.strerror or type(error).__name__, True
    except (ValueError, MemoryError) as error:  # a NUL in a path, a file that is not UTF-8
        return type(error).__name__, True


def make_tool_result(block: dict[str, Any], text: str, failed: bool) -> dict[str, Any]:
    """Return the tool_result block that answers a tool_use block."""
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": text}
    return {**result, "is_error": True} if failed else result


def continuation_message(problem: str, summary: str) -> dict[str, Any]:
    """Return the first message of a conversation whose history was summarized."""
    return user_message(f"{problem}\n{CONTINUED}\n{summary}")


class Stopped(Exception):
    """The end of the work without a Submit; ``end`` has its code and message."""

    def __init__(self, code: str, final_message: str = "") -> None:
        self.end = {"code": code, "final_message": final_message}
        super().__init__(code)


class Work:
    """One attempt at a problem, with its budget of turns; mutated by its own methods only."""

    def __init__(self, gateway: Messages, request: dict[str, Any], turns: int, window: int) -> None:
        self.gateway, self.request, self.window = gateway, request, window
        self.turns, self.turns_left, self.agents = 0, turns, 0
        self.finish_reason: str | None = None

    def solve(self, problem: str, system: str, tools: list[dict[str, Any]], thread: str) -> str:
        """Work until Submit and return its message; raises Stopped when it ends otherwise."""
        request = {**self.request, "system": system, "tools": tools}
        identity = {"agent-id": thread, "request-class": "subagent"} if thread else {}
        messages, hints, rested = [user_message(problem)], identity, REST_TURNS
        while True:
            reply = self.take_turn({**request, "messages": messages}, hints)
            hints, rested = identity, rested + 1
            calls = [block for block in reply["content"] if block["type"] == "tool_use"]
            if not calls:
                cut_off = reply["stop_reason"] == "max_tokens"
                raise Stopped("budget.tokens" if cut_off else "policy.gave_up", reply_text(reply))
            results = []
            for block in calls:
                fault = find_fault(block["name"], block["input"], tools)
                if block["name"] == "Submit" and not fault:
                    return str(block["input"]["message"])
                text, failed = (fault, True) if fault else self.run(block)
                results.append(make_tool_result(block, text, failed))
            messages.append({"role": "assistant", "content": reply["content"]})
            messages.append({"role": "user", "content": results})
            if self.window and count_tokens(reply) > self.window and rested >= REST_TURNS:
                results.append({"type": "text", "text": SUMMARIZE})
                compaction = {**identity, "request-class": "compaction"}
                summary = reply_text(self.take_turn({**request, "messages": messages}, compaction))
                messages, rested = [continuation_message(problem, summary)], 0
                hints = {**identity, "context-compacted": "auto"}

    def run(self, block: dict[str, Any]) -> tuple[str, bool]:
        """Run one well-formed call."""
        if block["name"] != "Agent":
            return run_tool(block["name"], block["input"])
        self.agents += 1
        thread = f"investigator-{self.agents}"
        prompt = block["input"]["prompt"]
        try:
            return self.solve(prompt, INVESTIGATE, INVESTIGATOR_TOOLS, thread), False
        except Stopped as stopped:
            if stopped.end["code"] != "policy.gave_up":
                raise
            return "the agent found nothing", True

    def take_turn(self, body: dict[str, Any], hints: dict[str, str]) -> Any:
        """Return the policy's next message; raises Stopped if the gateway has none."""
        if self.turns_left == 0:
            raise Stopped("budget.turns")
        self.turns_left -= 1
        try:
            reply = self.gateway.create(body, hints)
        except TurnError as error:
            code = "infra.model" if error.status in ENGINE_DOWN else "infra.gateway"
            if error.status == 400 and "prompt is too long" in str(error):
                code = "budget.tokens"
            raise Stopped(code, str(error)) from None
        self.turns += 1
        self.finish_reason = reply["stop_reason"]
        return reply


def reply_text(reply: dict[str, Any]) -> str:
    """Return a reply's text, without its tool calls."""
    return "\n".join(block["text"] for block in reply["content"] if block["type"] == "text")


def count_tokens(reply: dict[str, Any]) -> int:
    """Return the tokens of a turn: its prompt (cached or not) and its answer."""
    usage = reply["usage"]
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    total: int = usage["output_tokens"] + sum(usage.get(name, 0) for name in names)
    return total


def solve(gateway: Messages, problem: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Work on a problem; return its end as ``main`` prints it."""
    request = {"model": settings["model"], "max_tokens": settings["max_tokens"]}
    work = Work(gateway, request, settings["max_turns"], settings["window_tokens"])
    tools = DISPATCHER_TOOLS if settings["dispatch"] else TOOLS
    try:
        message = work.solve(problem, SYSTEM, tools, "")
        end = {"code": "policy.finished", "final_message": message}
    except Stopped as stopped:
        end = stopped.end
    return {**end, "finish_reason": work.finish_reason, "turns": work.turns}


def main(settings: str) -> None:
    """Solve the problem on stdin; ``settings``: a JSON object with max_turns, max_tokens, dispatch
    (bool) and window_tokens (0: no window).
    """
    problem = sys.stdin.buffer.read().decode()
    try:
        gateway = Messages(os.environ["ANTHROPIC_BASE_URL"], os.environ["ANTHROPIC_API_KEY"])
        model = {"model": os.environ["ANTHROPIC_MODEL"]}
        end = solve(gateway, problem, {**json.loads(settings), **model})
    except TurnError as error:  # ANTHROPIC_BASE_URL is malformed
        end = {"code": "infra.gateway", "final_message": str(error)}
    end["final_message"] = end["final_message"][:MESSAGE_CHARACTERS]
    print(json.dumps({"finish_reason": None, "turns": 0, **end}))
