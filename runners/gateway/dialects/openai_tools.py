"""Tools of the Responses API, converted to functions for the policy, and calls converted back.

A policy knows functions with JSON arguments only. A freeform tool and the local shell become
functions of one string; a namespace becomes a prefix of its functions' names. Hosted tools (web
search and the like), which only OpenAI's servers can run, are left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from runners.gateway.conversation import IssuedCall
from runners.gateway.dialects import openai
from runners.gateway.dialects.body import Name, Typed, WireModel
from runners.gateway.refusal import RefusalKind, Refused

LOCAL_SHELL = "local_shell"

SHELL = ("bash", "-lc")
"""Program and options that run the one string of a local shell call."""

FREEFORM_INPUT = "input"
SHELL_COMMAND = "command"


class FunctionTool(openai.Function):
    """A function, alone or in a namespace."""

    type: Literal["function"]


class _Format(WireModel):
    type: str
    syntax: str | None = None
    definition: str | None = None


class CustomTool(WireModel):
    """A freeform tool: it takes plain text, perhaps of a grammar."""

    type: Literal["custom"]
    name: Name
    description: str | None = None
    format: _Format | None = None


def _tool_tag(tool: object) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return kind if kind in ("function", "custom", "namespace") else "other"


_Simple = (
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[Typed, Tag("other")]
)


class NamespaceTool(WireModel):
    """Tools under a common name."""

    type: Literal["namespace"]
    name: Name
    tools: list[Annotated[_Simple, Discriminator(_tool_tag)]]


Tool = Annotated[_Simple | Annotated[NamespaceTool, Tag("namespace")], Discriminator(_tool_tag)]
"""An entry of ``tools``."""


@dataclass(frozen=True, slots=True)
class PolicyTool:
    """A client's tool in the form that the policy gets."""

    function: dict[str, Any]
    kind: Literal["function", "custom", "local_shell"]
    name: str
    """The client's name for it."""
    namespace: str | None = None


def policy_name(name: str, namespace: str | None) -> str:
    """Return the policy's name for a tool."""
    return f"{namespace}__{name}" if namespace else name


def to_policy_tools(tools: Iterable[Tool]) -> tuple[dict[str, PolicyTool], list[str]]:
    """Return the tools by the policy's names, and the types of those left out; raises Refused."""
    found: dict[str, PolicyTool] = {}
    left_out: list[str] = []
    for tool, namespace in _flatten(tools):
        converted = _to_policy_tool(tool, namespace)
        if converted is None:
            left_out.append(tool.type)
            continue
        name = converted.function["function"]["name"]
        if name in found:
            raise Refused(
                RefusalKind.INVALID, f"tools: two tools are named {name!r}", param="tools"
            )
        found[name] = converted
    return found, left_out


def _flatten(
    tools: Iterable[Tool],
) -> Iterator[tuple[FunctionTool | CustomTool | Typed, str | None]]:
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            yield from ((inner, tool.name) for inner in tool.tools)
        else:
            yield tool, None


def _to_policy_tool(
    tool: FunctionTool | CustomTool | Typed, namespace: str | None
) -> PolicyTool | None:
    match tool:
        case FunctionTool():
            name = policy_name(tool.name, namespace)
            function = openai.to_function_tool(name, tool.description, tool.parameters)
            return PolicyTool(function, "function", tool.name, namespace)
        case CustomTool():
            name = policy_name(tool.name, namespace)
            grammar = tool.format.definition if tool.format else None
            kind = f"Text of this grammar:\n{grammar}" if grammar else "Text."
            function = _one_string_function(name, tool.description, FREEFORM_INPUT, kind)
            return PolicyTool(function, "custom", tool.name, namespace)
        case Typed(type="local_shell"):
            function = _one_string_function(
                LOCAL_SHELL, "Run a command in a shell.", SHELL_COMMAND, "Command line for bash."
            )
            return PolicyTool(function, "local_shell", LOCAL_SHELL)
        case _:
            return None


def _one_string_function(
    name: str, description: str | None, argument: str, meaning: str
) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": meaning}},
        "required": [argument],
    }
    return openai.to_function_tool(name, description, schema)


def join_command(command: list[str]) -> str:
    """Return the one string that makes a local shell's command."""
    if tuple(command[:-1]) == SHELL:
        return command[-1]
    return shlex.join(command)


def to_call_item(call: IssuedCall, tools: Mapping[str, PolicyTool]) -> dict[str, Any]:
    """Return the output item by which a client runs a call."""
    tool = tools.get(call.name) or PolicyTool({}, "function", call.name)
    content: dict[str, Any] = {"name": tool.name}
    match tool.kind:
        case "custom":
            kind, prefix = "custom_tool_call", "ctc"
            content["input"] = _one_string(call.arguments, FREEFORM_INPUT)
        case "local_shell":
            kind, prefix = "local_shell_call", "lsh"
            command = [*SHELL, _one_string(call.arguments, SHELL_COMMAND)]
            content = {"action": {"type": "exec", "command": command, "env": {}}}
        case "function":
            kind, prefix = "function_call", "fc"
            content["arguments"] = openai.write_arguments(call.arguments)
    if tool.namespace is not None:
        content["namespace"] = tool.namespace
    return {
        "type": kind,
        "id": f"{prefix}_{call.id.removeprefix('call_')}",
        "status": "completed",
        "call_id": call.id,
        **content,
    }


def to_sent_call(call: IssuedCall, tools: Mapping[str, PolicyTool]) -> IssuedCall:
    """Return the call that ``to_call_item`` becomes when it is read again."""
    tool = tools.get(call.name)
    if tool is None or tool.kind == "function":
        return call
    name = FREEFORM_INPUT if tool.kind == "custom" else SHELL_COMMAND
    return replace(call, arguments={name: _one_string(call.arguments, name)})


def _one_string(arguments: dict[str, Any], name: str) -> str:
    """Return the argument of a function of one string; all of them as JSON if it is missing."""
    value = arguments.get(name)
    return value if isinstance(value, str) else openai.write_arguments(arguments)
