"""``agentrl tasks``: list a dataset's tasks, check them, write them in another form."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from cli.arguments import ConfigDir, Json, Overrides, examples
from cli.task_check import NO_GATEWAY, check_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from conf.sections.task import JsonlTaskConfig
    from runners.tasks.contract import Task
    from runners.tasks.sets import State, TaskFilter, TaskListing

app = typer.Typer(
    no_args_is_help=True, help="List and check tasks, and write them as rows or Harbor directories."
)
CHECK_EXAMPLES = examples(
    "agentrl tasks check tasks.jsonl",
    "agentrl tasks check task=jsonl task.path=rows.jsonl eval.ids='django__*' sandbox=docker",
    "agentrl tasks check --resume runs/20260101-120000-tasks-check",
)
LIST_EXAMPLES = examples(
    "agentrl tasks list suite",
    "agentrl tasks list tasks.jsonl --match 'django__*' --state ready sandbox=docker",
)
CONVERT_EXAMPLES = examples(
    "agentrl tasks convert SWE-Gym/SWE-Gym gym.jsonl task.format=swe_gym --match 'pandas*'",
    "agentrl tasks convert rows.parquet ready.jsonl --state ready task.exclude=calibration.json",
)
EXPORT_EXAMPLES = examples(
    "agentrl tasks export-harbor suite task=bugfix --match 'train-00*'",
    "agentrl tasks export-harbor suite task=swebench",
    "agentrl tasks export-harbor suite task=jsonl task.path=tasks.jsonl --match 'acme__*'",
)
DatasetPath = Annotated[
    str, typer.Argument(metavar="PATH", help="As in task.path.", show_default=False)
]
Match = Annotated[str, typer.Option("--match", metavar="GLOB", help="Only tasks of such ids.")]
SPLITS = ("train", "held_out")
STATES: dict[str, State] = {
    "ready": "ready",
    "needs-image": "needs image",
    "refused": "refused",
}
"""A dataset's states of tasks, as the option has them."""
Split = Annotated[
    str | None,
    typer.Option(
        metavar=f"[{'|'.join(SPLITS)}]", help="Only tasks of this split.", show_default=False
    ),
]
StateName = Annotated[
    str | None,
    typer.Option(
        metavar=f"[{'|'.join(STATES)}]",
        help="Only tasks of which these sandboxes say so.",
        show_default=False,
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Only rows of this task.format, or harbor.", show_default=False
    ),
]


@app.command("list", epilog=LIST_EXAMPLES)
def list_tasks(
    path: DatasetPath,
    overrides: Overrides = None,
    _config_dir: ConfigDir = None,
    match: Match = "*",
    state: StateName = None,
    schema: Schema = None,
    split: Split = None,
    as_json: Json = False,
) -> None:
    """List tasks: whether these sandboxes can run each, split, schema.

    With --json also kind, grading and image. Exit code 5: an entry is malformed.
    """
    from cli.invocation import print_json, report_each, report_error, stdout
    from cli.tables import render_tasks
    from conf.errors import ExitCode

    _, listing, _ = _read(path, overrides, _make_filter(match, state, schema, split))
    if as_json:
        print_json(listing.to_dict())
    else:
        stdout().print(render_tasks(listing))
    report_each(report_error, listing.faults)
    raise typer.Exit(int(ExitCode.DATA_REFUSED if listing.faults else ExitCode.DONE))


@app.command("check", epilog=CHECK_EXAMPLES)
def check(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH] [KEY=VALUE]",
            help="The dataset, as in task.path, or the arguments of `agentrl run`.",
            show_default=False,
        ),
    ] = None,
    _config_dir: ConfigDir = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Go on with the check in this directory: grade what is missing.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check tasks before they train, and set those aside that could be paid unsolved.

    Of each task the reference patch, the empty one, and generic attacks (emptied tests, another
    Makefile, objects that equal everything, …) are graded three times each, as rollouts are
    (eval.attempts_per_task says how often; eval.ids and eval.tasks choose). Set aside by name are
    tasks that would pay an attack, whose reference patch fails, or fails sometimes, and that the
    empty patch solves: in calibration.json, which task.exclude takes. The first ctrl-C ends it
    after the gradings in flight. Exit code 1: a task is set aside, or has no verdict.
    """
    from conf.errors import ConfigError
    from conf.grammar import as_text

    lines = words or []
    if lines and _is_path(lines[0]):
        lines = ["task=jsonl", f"task.path={as_text(lines[0])}", *lines[1:]]
    if not lines and resume is None:
        raise ConfigError(
            "no tasks are named: agentrl tasks check PATH, or with the KEY=VALUE of `agentrl run`"
        )
    raise typer.Exit(check_tasks(lines, resume, context.obj))


def _is_path(word: str) -> bool:
    return not re.match(r"[+~]*[\w.@/]+=|~", word) or Path(word).exists()


@app.command("convert", epilog=CONVERT_EXAMPLES)
def convert(
    path: DatasetPath,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="A .jsonl file to be made.", show_default=False)
    ],
    overrides: Overrides = None,
    match: Match = "*",
    state: StateName = None,
    schema: Schema = None,
    split: Split = None,
    as_json: Json = False,
) -> None:
    """Write rows of any schema as JSONL that task=jsonl reads and grades in the same way.

    Layers of trainers are removed, each row names its schema, and files beside the rows that they
    need are copied. Exit code 5: an entry is malformed; the other ones are written.
    """
    from cli.invocation import print_json, report_each, report_error
    from conf.errors import ConfigError, ExitCode
    from runners.observe.console import report_warning
    from runners.tasks.sets import convert_rows

    config, listing, tasks = _read(path, overrides, _make_filter(match, state, schema, split))
    report_each(report_error, listing.faults)
    aside = [f"{name} is set aside: {reason}" for name, reason in listing.set_aside.items()]
    report_each(report_warning, aside)
    if not tasks:
        raise ConfigError(f"no task of {path} is meant: change --match, --state, --schema, --split")
    written = convert_rows(config, tasks, out)
    if as_json:
        document = {"path": str(out), "written": list(written), "refused": list(listing.faults)}
        print_json({**document, "set_aside": listing.set_aside})
    else:
        typer.echo(out)
    raise typer.Exit(int(ExitCode.DATA_REFUSED if listing.faults else ExitCode.DONE))


def _check_choice(option: str, given: str | None, known: Iterable[str]) -> None:
    """Raise ConfigError for an option's value that is none of the known ones."""
    from conf.errors import ConfigError
    from runners.observe.export import describe_choices

    known = sorted(known)
    if given is not None and given not in known:
        raise ConfigError(f"{option} {given}: {describe_choices(given, known)}")


def _make_filter(
    match: str, state: str | None, schema: str | None, split: str | None
) -> TaskFilter:
    from conf.sections.task import FormatName
    from runners.tasks.sets import TaskFilter

    _check_choice("--schema", schema, {*get_args(FormatName), "harbor"} - {"auto"})
    _check_choice("--state", state, STATES)
    _check_choice("--split", split, SPLITS)
    return TaskFilter(match, None if state is None else STATES[state], schema, split)


def _read(
    path: str, overrides: list[str] | None, wanted: TaskFilter
) -> tuple[JsonlTaskConfig, TaskListing, tuple[Task, ...]]:
    """Return the configuration of a dataset and its tasks that are wanted; raises AgentrlError."""
    from cli.invocation import stderr
    from conf.compose import compose
    from conf.errors import ConfigError
    from conf.sections.task import JsonlTaskConfig
    from runners.campaigns.evaluation.benchmarks import NO_TRAINING
    from runners.tasks.sets import list_dataset

    if not _is_path(path):
        raise ConfigError(f"{path} is where PATH belongs: first the dataset, then KEY=VALUE")
    lines = ["task=jsonl", "task.path=PATH", *NO_TRAINING, *NO_GATEWAY, *(overrides or [])]
    config = compose(lines)
    assert isinstance(config.task, JsonlTaskConfig)
    family = config.task.model_copy(update={"path": path})
    with stderr().status("reading the tasks…") as status:
        listing, tasks = list_dataset(
            family, config.sandbox, wanted, seed=config.seed, show=status.update
        )
    return family, listing, tasks


@app.command("export-harbor", epilog=EXPORT_EXAMPLES)
def export_harbor(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="A directory to be made.", show_default=False)
    ],
    overrides: Overrides = None,
    _config_dir: ConfigDir = None,
    match: Match = "*",
    split: Split = None,
    as_json: Json = False,
) -> None:
    """Write tasks as Harbor directories that need nothing of agentrl.

    Exit code 5: some tasks have no such form; each is named.
    """
    from cli.invocation import print_json, report_each
    from conf.compose import compose
    from conf.errors import ExitCode
    from runners.campaigns.evaluation.benchmarks import NO_TRAINING
    from runners.observe.console import report_warning
    from runners.tasks.sets import export_suite

    _check_choice("--split", split, SPLITS)
    config = compose([*NO_TRAINING, *(overrides or [])])
    suite = export_suite(config, out, match, split)
    report_each(report_warning, [f"{name}: {why}" for name, why in suite.refused.items()])
    if as_json:
        print_json({"path": str(out), "written": list(suite.written), "refused": suite.refused})
    else:
        typer.echo(out)
    raise typer.Exit(int(ExitCode.DATA_REFUSED if suite.refused else ExitCode.DONE))
