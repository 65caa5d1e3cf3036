"""Arguments and options that several commands share."""

from __future__ import annotations

import inspect
import re
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

PROGRAM = "program"
"""Key of a context's ``meta``: the words after ``--``."""


class OwnCommand(TyperCommand):
    """A command, none of whose options takes another option for its value.

    The contexts of its methods are of a class that is typer's own secret.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse ``--html --json``, then parse: it would write a file of that name."""
        options: list[Any] = [
            each for each in self.get_params(ctx) if each.param_type_name == "option"
        ]
        names = {name for each in options for name in each.opts}
        takes_value = {name for each in options if not each.is_flag for name in each.opts}
        for word, following in pairwise(args):
            if word == "--":
                break
            if word in takes_value and following in names:
                raise typer.BadParameter(
                    f"{following} is an option (if it is the value, write {word}={following})",
                    ctx,
                    param_hint=f"'{word}'",
                )
        return super().parse_args(ctx, args)


class ProgramCommand(OwnCommand):
    """A command that takes a program and its arguments after ``--``, as they are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what stands before ``--``; keep the rest."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[PROGRAM] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- PROGRAM ARGUMENTS]"]


class CommandGroup(TyperGroup):
    """All commands, whose errors of usage are in plain words."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Parse what stands before the command."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except Exception as error:
            _reword(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Parse the rest and run the command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            _reword(error)
            raise


_NO_NUMBER = re.compile(r"Input should be a valid (integer|number).*", re.DOTALL)
_NUMBERS = {"integer": "must be a whole number", "number": "must be a number"}


def _reword(error: Exception) -> None:
    """Put pydantic's words in a usage error into ours; typer names only a subclass of it."""
    if isinstance(error, typer.BadParameter.__bases__[0]):
        shown: Any = error
        shown.message = _NO_NUMBER.sub(lambda found: _NUMBERS[found[1]], shown.message)


def join_lines(command: object) -> str:
    """Return a command's docstring with one line to a paragraph, which any terminal can wrap."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(command) or "")


def examples(*lines: str) -> str:
    """Return the epilog of a command's help: a list of example command lines."""
    return "\n\n".join(["[bold]Examples[/]", *(f"  {line}" for line in lines)])


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Choose from a group (engine=sglang) or set a key (run.steps=10).",
        show_default=False,
    ),
]
CommandAndOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[run | eval BENCHMARK] [KEY=VALUE]",
        help="The command that is meant (a campaign, if none is named) and its arguments.",
        show_default=False,
    ),
]


def split_command(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the benchmark that ``eval BENCHMARK KEY=VALUE…`` measures, None for ``run``; and the
    overrides of that command, its own included. Raises ConfigError.
    """
    match words:
        case ["run", *overrides]:
            return None, overrides
        case ["eval", benchmark, *overrides]:
            from runners.campaigns.evaluation.benchmarks import find_benchmark

            found = find_benchmark(benchmark)
            return found.name, found.overrides(overrides)
        case ["eval"]:
            from runners.campaigns.evaluation.benchmarks import find_benchmark

            find_benchmark("")
    return None, words


def _use_config_dir(directory: Path | None) -> Path | None:
    from conf.config_dir import use_config_dir

    use_config_dir(directory)
    return directory


ConfigDir = Annotated[
    Path | None,
    typer.Option(
        "--config-dir",
        metavar="DIR",
        help="Take choices from your own folder, too: DIR/GROUP/CHOICE.yaml is GROUP=CHOICE.",
        callback=_use_config_dir,
        is_eager=True,
        show_default=False,
    ),
]
RunDir = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run directory.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
ROLLOUT_KINDS = "train, eval, solved, unsolved or failed (without a grade)"
"""Of the help of ``--only``."""
Steps = Annotated[
    str | None,
    typer.Option(
        metavar="N|N-M", help="Only this step, or this range of steps.", show_default=False
    ),
]
TaskIds = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ID",
        help="Only this task; * and ? are wildcards. Can be repeated.",
        show_default=False,
    ),
]
MinReward = Annotated[
    float | None,
    typer.Option(metavar="X", help="Only rollouts with at least this reward.", show_default=False),
]
