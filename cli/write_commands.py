"""Describe the commands in the table by which a TAB knows them.

Names, options and arguments come from typer. Where an option's metavariable does not list its
values, they come from the code that reads the option.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from typer.main import get_command

from agentrl.referee.program import load_scenarios
from cli.app import app
from cli.arguments import ProgramCommand
from cli.referee import WIRE_NAMES
from conf.sections.task import FormatName
from conf.write_reference import shorten
from runners.campaigns.evaluation.benchmarks import BENCHMARKS
from runners.observe.export import FORMATS
from runners.observe.viewer import KINDS, ONLY, RUNNING, SORTS
from runners.records.outcome import OutcomeClass, OutcomeCode

_SCENARIOS = load_scenarios()
VALUES: Mapping[str, Iterable[str]] = {
    "BENCHMARK": BENCHMARKS,
    "SCENARIO": _SCENARIOS,
    "--only GROUP,…": [*dict.fromkeys(each.group for each in _SCENARIOS.values()), *_SCENARIOS],
    "--wire API": WIRE_NAMES,
    "--wire API,…": WIRE_NAMES,
    "--format FORMAT,…": FORMATS,
    "--kind KIND": KINDS,
    "--only CODE": OutcomeCode,
    "--only KIND": ONLY,
    "rollouts --only KIND": (*ONLY, RUNNING),
    "--outcome CODE": [*OutcomeClass, *OutcomeCode],
    "--schema NAME": [*get_args(FormatName), "harbor"],
    "--sort KEY": [*SORTS, *(f"-{name}" for name in SORTS)],
}
"""Values of options and arguments whose metavariable does not list them; before an option the
command may stand that alone has them.
"""


def render_table() -> str:
    """Return the table as JSON: commands by name, in the order of the help."""
    return json.dumps(_describe("agentrl", get_command(app), None), ensure_ascii=False)


def _describe(name: str, command: Any, parent: Any) -> dict[str, Any]:
    """Return what is known of a command, or of a group of them; ``parent``: the group's context."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    context = command.make_context(name, [], parent, resilient_parsing=True)
    return {
        "help": shorten(command.get_short_help_str(1000)),
        "options": {
            word: (
                None if option.is_flag else _list_values(name, word, option),
                shorten(option.help),
            )
            for option in (*options, command.get_help_option(context))
            for word in sorted((*option.opts, *option.secondary_opts))
        },
        "arguments": [_list_values(name, "", argument) for argument in arguments],
        "repeats": bool(arguments) and arguments[-1].nargs == -1,
        "takes_program": isinstance(command, ProgramCommand),
        "commands": {
            word: _describe(word, each, context)
            for word, each in getattr(command, "commands", {}).items()
        },
    }


def _list_values(command: str, name: str, parameter: Any) -> str:
    """Return the metavariable of a parameter, with its values where they are known."""
    metavar = str(parameter.metavar or "")
    key = f"{name} {metavar}".strip()
    if (known := VALUES.get(f"{command} {key}", VALUES.get(key))) is None:
        return metavar
    return f"[{'|'.join(known)}]{',…' if metavar.endswith(',…') else ''}"
