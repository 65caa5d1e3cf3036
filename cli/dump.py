"""``agentrl dump-trajectories``: everything that happened in a run, token-exact."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import Json, RunDir, examples

if TYPE_CHECKING:
    from runners.export.contract import Decode
    from runners.export.dump import DumpReport

EXAMPLES = examples(
    "agentrl dump-trajectories runs/20260101-120000-linear --validate",
    "agentrl dump-trajectories runs/20260101-120000-mixed --format html,png --step 3-7",
    "agentrl dump-trajectories runs/20260101-120000-linear --only failed --out failed",
)


class Only(StrEnum):
    """Which rollouts are exported."""

    TRAIN = "train"
    EVAL = "eval"
    SOLVED = "solved"
    UNSOLVED = "unsolved"
    FAILED = "failed"


def dump_trajectories(
    context: typer.Context,
    run: RunDir,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT,…",
            help="jsonl: the full record. atif: Harbor's interchange format. parquet: a row per "
            "rollout. slime: samples for its trainer. html: a page to look at. png: plots.",
        ),
    ] = "jsonl",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to; RUN/dump if not given.", show_default=False),
    ] = None,
    only: Annotated[
        Only | None,
        typer.Option(help="Only these rollouts; failed: without a grade.", show_default=False),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(metavar="N|N-M", help="Only this step, or these.", show_default=False),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Only this task; * and ? match. Repeatable.", show_default=False
        ),
    ] = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="Read the jsonl again and check every record.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Export a run: every rollout, failures included, with the exact tokens."""
    context.obj.json = as_json
    from cli.invocation import print_json, stderr
    from runners.export import dump
    from runners.store.run_store import RunStore

    formats = dump.read_formats(form)
    choice = dump.read_choice(only, step, task or ())
    if validate and "jsonl" not in formats:
        raise dump.DumpError(f"--validate checks the jsonl: --format {form},jsonl")
    with RunStore.open(run, read_only=True) as store:
        decode = _decode(store.config())
        report = dump.dump(
            store, out or run / "dump", formats=formats, choice=choice, decode=decode
        )
    stderr().print(f"{report.rollouts:,} rollouts, {report.bytes / 1e6:,.1f} MB", soft_wrap=True)
    if validate:
        _validate(report)
        stderr().print("every record is valid", style="green")
    if as_json:
        files = [
            {"format": file.format, "path": str(file.path), "bytes": file.bytes}
            for file in report.files
        ]
        print_json({"rollouts": report.rollouts, "files": files, "validated": validate})
    else:
        for path in report.places:
            typer.echo(path)


def _validate(report: DumpReport) -> None:
    from runners.export.jsonl import validate
    from runners.store.store_error import StoreError

    (path,) = (file.path for file in report.files if file.format == "jsonl")
    if faults := validate(path):
        raise StoreError("\n".join(f"{path}: {fault}" for fault in faults))


def _decode(config: dict[str, Any]) -> Decode | None:
    """Return the run's way from tokens to text, if its tokenizer is still where it was."""
    from pydantic import ValidationError

    from conf.sections.model import TinyModelConfig
    from runners.gateway.tokenizer import load_tokenizer
    from runners.training.bootstrap import tiny_directory

    model = config.get("model", {})
    directory = model.get("tokenizer")
    if directory is None and model.get("kind") == "tiny":
        try:
            tiny = TinyModelConfig.model_validate(model)
        except ValidationError:  # the configuration of another agentrl
            return None
        directory = tiny_directory(tiny, config["scenario"]["kind"])
    if directory is None or not (Path(directory) / "tokenizer.json").is_file():
        return None
    return load_tokenizer(Path(directory)).decode
