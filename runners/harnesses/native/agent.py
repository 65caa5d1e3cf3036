"""The native agent: one loop, four tools; it runs inside the sandbox on Python's standard library.

``main(max_turns, max_tokens)`` reads the problem statement from stdin, and from the environment
``ANTHROPIC_BASE_URL``, ``ANTHROPIC_API_KEY`` and ``ANTHROPIC_MODEL``. The assistant's messages go
back exactly as they came. The last line it prints is one JSON object: ``code`` (a value of
``OutcomeCode``), ``final_message``, ``finish_reason``, ``turns``.
"""

# ruff: noqa: PTH123 (pathlib takes 6 ms to import)

from __future__ import annotations

import os
import sys

from .wire import MODEL_IS_GONE, GatewayError, Messages, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SYSTEM = "Solve the task, then Submit."
OUTPUT_BYTES = 8000
BASH_S = 30
SIGKILL, SIGPIPE = 9, 13  # the signal module takes 3 ms to import


class ToolError(Exception):
    """A tool call that failed; its text goes to the policy."""


def read(path: str) -> str:
    """Return a file's text."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would block
    try:
        return contents(file)
    finally:
        os.close(file)


def edit(path: str, old_string: str, new_string: str) -> str:
    """Replace the one occurrence of ``old_string``."""
    with open(path, "r+", encoding="utf-8", newline="") as file:
        text = file.read()
        found = text.count(old_string) if old_string else 0
        if found != 1:
            raise ToolError(f"old_string occurs {found} times")
        file.seek(0)
        file.write(text.replace(old_string, new_string))
        file.truncate()
    return "ok"


def bash(command: str, limit_s: float = BASH_S) -> str:
    """Run a command; whatever it leaves running is killed."""
    import select

    # Output goes to a file, not a pipe: a background child that keeps a pipe open would hang us.
    output = os.memfd_create("output")
    keep = {name: value for name, value in os.environ.items() if not name.startswith("ANTHROPIC_")}
    streams = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)]
    streams += [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]  # type: ignore[list-item]
    argv = ["bash", "-c", command]
    child = os.posix_spawn(
        "/bin/bash", argv, keep, file_actions=streams, setpgroup=0, setsigdef=[SIGPIPE]
    )
    ended = select.poll()
    handle = os.pidfd_open(child)
    ended.register(handle, select.POLLIN)
    in_time = ended.poll(limit_s * 1000)
    os.killpg(child, SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = contents(output)
    os.close(handle)
    os.close(output)
    if not in_time:
        raise ToolError(f"{text}\nkilled after {limit_s} s")
    if code != 0:
        raise ToolError(f"{text}\nexit code {code}".lstrip())
    return text


def contents(file: int) -> str:
    """Return an open file's text without the middle of what is too long."""
    size, half = os.fstat(file).st_size, OUTPUT_BYTES // 2
    if size <= OUTPUT_BYTES:
        return os.pread(file, OUTPUT_BYTES, 0).decode(errors="replace")
    ends = os.pread(file, half, 0), os.pread(file, half, size - half)
    return "\n...\n".join(end.decode(errors="replace") for end in ends)


def _tool(name: str, description: str, *arguments: str) -> dict[str, Any]:
    properties = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"name": name, "description": description, "input_schema": schema}


TOOLS = [
    _tool("Read", "Read a file.", "path"),
    _tool("Edit", "Replace text in a file.", "path", "old_string", "new_string"),
    _tool("Bash", "Run a command.", "command"),
    _tool("Submit", "Finish.", "message"),
]
RUN: dict[str, Callable[..., str]] = {"Read": read, "Edit": edit, "Bash": bash}


def user_message(problem: str) -> dict[str, Any]:
    """Return the conversation's first message."""
    return {"role": "user", "content": problem}


def call(name: str, arguments: object) -> tuple[str, bool]:
    """Run one tool in the current directory; return its text and whether it failed."""
    wanted = {tool["name"]: tool["input_schema"]["required"] for tool in TOOLS}.get(name)
    if wanted is None:
        return f"no tool {name}", True
    if not isinstance(arguments, dict) or set(arguments) != set(wanted):
        return f"{name} takes {', '.join(wanted)}", True
    if not all(isinstance(value, str) for value in arguments.values()):
        return f"{name} takes strings", True
    try:
        return RUN[name](**arguments), False
    except ToolError as error:
        return str(error), True
    except OSError as error:
        return error.strerror or type(error).__name__, True
    except ValueError as error:  # a NUL in a path, a file that is not UTF-8
        return type(error).__name__, True


def tool_result(block: dict[str, Any]) -> dict[str, Any]:
    """Run the call of one tool_use block; return the tool_result block that answers it."""
    text, failed = call(block["name"], block["input"])
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": text}
    return {**result, "is_error": True} if failed else result


def submitted(block: dict[str, Any]) -> bool:
    """Whether a tool_use block is a well-formed Submit."""
    given = block["input"]
    named = block["name"] == "Submit" and isinstance(given, dict)
    return named and isinstance(given.get("message"), str)


def solve(gateway: Messages, request: dict[str, Any], problem: str, turns: int) -> dict[str, Any]:
    """Work until the policy submits, calls no tool, or has used its turns; return how it ended."""
    messages = [user_message(problem)]
    end = {"code": "budget.turns", "final_message": "", "finish_reason": None, "turns": 0}
    for turn in range(1, turns + 1):
        try:
            reply = gateway.create({**request, "messages": messages})
        except GatewayError as error:
            code = "infra.model" if error.status in MODEL_IS_GONE else "infra.gateway"
            if error.status == 400 and "prompt is too long" in str(error):
                code = "budget.tokens"
            return {**end, "code": code, "final_message": str(error)}
        texts = [block["text"] for block in reply["content"] if block["type"] == "text"]
        end |= {"turns": turn, "finish_reason": reply["stop_reason"]}
        end |= {"final_message": "\n".join(texts)}
        calls = [block for block in reply["content"] if block["type"] == "tool_use"]
        if not calls:
            cut_off = reply["stop_reason"] == "max_tokens"
            return {**end, "code": "budget.tokens" if cut_off else "policy.gave_up"}
        results = []
        for block in calls:
            if submitted(block):
                last = block["input"]["message"]
                return {**end, "code": "policy.finished", "final_message": last}
            results.append(tool_result(block))
        messages.append({"role": "assistant", "content": reply["content"]})
        messages.append({"role": "user", "content": results})
    return end


def main(max_turns: int, max_tokens: int) -> None:
    """Solve the problem on stdin."""
    problem = sys.stdin.buffer.read().decode()
    model = os.environ["ANTHROPIC_MODEL"]
    request = {"model": model, "max_tokens": max_tokens, "system": SYSTEM, "tools": TOOLS}
    try:
        gateway = Messages(os.environ["ANTHROPIC_BASE_URL"], os.environ["ANTHROPIC_API_KEY"])
        end = solve(gateway, request, problem, max_turns)
    except GatewayError as error:  # the URL is no URL
        end = {"code": "infra.gateway", "final_message": str(error)}
    print(encode({"finish_reason": None, "turns": 0, **end}))
