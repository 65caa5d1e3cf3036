"""``agentrl dump-trajectories``: export everything that happened in a run, token-exact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import (
    ROLLOUT_KINDS,
    Json,
    MinReward,
    RunDir,
    Steps,
    TaskIds,
    examples,
)

EXAMPLES = examples(
    "agentrl dump-trajectories runs/20260101-120000-linear --validate",
    "agentrl dump-trajectories runs/20260101-120000-mixed --format html,parquet --step 3-7",
    "agentrl dump-trajectories runs/20260101-120000-linear --only failed --out failed",
    "agentrl dump-trajectories runs/20260101-120000-linear --format sft --min-reward 1 --unique",
)


def dump_trajectories(
    run: RunDir,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT,…",
            help="jsonl: the full record. atif: Harbor's interchange format. parquet: a row per "
            "rollout. slime: samples for its trainer. "
            "sft: examples for supervised fine-tuning. html: a page.",
        ),
    ] = "jsonl",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory to write to; default: RUN/dump.", show_default=False
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help=f"Only these rollouts: {ROLLOUT_KINDS}.",
            show_default=False,
        ),
    ] = None,
    step: Steps = None,
    task: TaskIds = None,
    min_reward: MinReward = None,
    unique: Annotated[
        bool,
        typer.Option("--unique", help="Of sft: leave out what is the same as an earlier example."),
    ] = False,
    validate: Annotated[
        bool,
        typer.Option("--validate", help="Read jsonl and sft again and check every record."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Export a run: every rollout, failures included, with the exact tokens."""
    from cli.invocation import print_json, stderr
    from runners.observe.export import (
        DumpError,
        dump,
        find_decode,
        parse_filter,
        parse_formats,
        require_known,
    )
    from runners.observe.report import read_document
    from runners.records.store import RunStore, StoreError

    formats = parse_formats(form)
    selection = parse_filter(only, step, task or (), min_reward)
    if validate and not {"jsonl", "sft"}.intersection(formats):
        raise DumpError(f"--validate checks jsonl and sft: --format {form},jsonl")
    with RunStore.open(run, read_only=True) as store:
        require_known(store, tasks=selection.tasks, steps=selection.steps)
        decode = find_decode(store)
        report = dump(
            store,
            out or run / "dump",
            formats=formats,
            selection=selection,
            decode=decode,
            unique=unique,
            report=lambda: read_document(store).to_dict(),
        )
    stderr().print(f"{report.rollouts:,} rollouts, {report.bytes / 1e6:,.1f} MB", soft_wrap=True)
    if validate:
        if faults := report.find_faults():
            raise StoreError("\n".join(faults))
        stderr().print("every record is valid", style="green")
    if as_json:
        files = [
            {"format": file.format, "path": str(file.path), "bytes": file.bytes}
            for file in report.files
        ]
        print_json({"rollouts": report.rollouts, "files": files, "validated": validate})
    else:
        for path in report.paths:
            typer.echo(path)
