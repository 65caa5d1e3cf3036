"""``agentrl check``: what a run needs, tried before it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cli.arguments import Json, Overrides, examples
from cli.invocation import print_json, report_warning, stderr, stdout

if TYPE_CHECKING:
    from conf.schema import Config
    from launch.preflight import Problem
    from runners.check import DialBack
    from runners.probe import Finding
    from runners.tasks.loading import Report

EXAMPLES = examples(
    "agentrl check",
    "agentrl check harness=claude_code",
    "agentrl check task=swebench task.path=instances.jsonl",
    "agentrl check harness=claude_code harness.binary=./claude --json",
)


def check(context: typer.Context, overrides: Overrides = None, as_json: Json = False) -> None:
    """Check what a run needs, and let its agent program take one turn.

    Tasks of a file are read, and every malformed row is named with its line (exit code 5).
    An agent program that is missing is installed into the user's cache; programs, paths and ports
    are looked at. Then the agent takes a turn in a sandbox, through the gateway: engine.url
    answers, or a canned reply where the engine is ours. Exit code 3: something is missing.
    """
    context.obj.json = as_json
    import tempfile

    import uvloop

    from cli.jobs import new_job
    from launch.preflight import preflight, refuse_fatal
    from runners.check import dial_back, probe_engine, refuse_trouble
    from runners.harnesses.registry import install_harness
    from runners.tasks.datasets import check_tasks

    job = new_job(overrides or [], kind="check")
    tasks = check_tasks(job.config.task)
    with stderr().status(f"harness={job.config.harness.kind}: looking for the program…"):
        install_harness(job.config.harness)
    problems = preflight(job.config, job.run_dir)
    refuse_fatal(problems)
    for problem in problems:
        report_warning(problem.message)
    with stderr().status(f"engine={job.config.engine.kind}: trying what a run needs…"):
        engine = uvloop.run(probe_engine(job.config))
    if not as_json:
        _show_engine(engine)
    refuse_trouble(engine)
    with (
        tempfile.TemporaryDirectory(prefix="agentrl-check-") as work,
        stderr().status(f"harness={job.config.harness.kind}: one turn…"),
    ):
        found = uvloop.run(dial_back(job.config, Path(work)))
    if as_json:
        print_json(_document(job.config, problems, found, tasks, engine))
    else:
        _show(job.config, found, tasks)


def _document(
    config: Config,
    problems: list[Problem],
    found: DialBack,
    tasks: Report | None,
    engine: list[Finding],
) -> dict[str, Any]:
    return {
        "engine": {finding.name: finding.detail for finding in engine},
        "tasks": tasks
        and {
            "path": tasks.path,
            "number": len(tasks.tasks),
            "kinds": tasks.kinds,
            "repositories": tasks.repositories,
        },
        "harness": {"kind": config.harness.kind, **found.result.facts},
        "turns": found.turns,
        "prompt_tokens": found.prompt_tokens,
        "seconds": round(found.seconds, 3),
        "outcome": found.result.code.value,
        "sandbox": found.guarantees,
        "problems": [{"fatal": p.fatal, "message": p.message} for p in problems],
        "exit_code": 0,
    }


def _show_engine(findings: list[Finding]) -> None:
    for finding in findings:
        verdict = "ok" if finding.ok else "problem"
        stdout().print(f"engine: {finding.name}  {verdict}: {finding.detail}", markup=False)


def _show(config: Config, found: DialBack, tasks: Report | None) -> None:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    if tasks is not None:
        kinds = ", ".join(f"{number} by {kind}" for kind, number in tasks.kinds.items())
        table.add_row(
            "tasks",
            f"{len(tasks.tasks)} of {len(tasks.repositories)} repositories, graded: {kinds}",
        )
    version = found.result.facts.get("version")
    table.add_row("agent program", f"{config.harness.kind} {version or ''}".strip())
    table.add_row(
        "one turn", f"{found.seconds:.1f} s in the sandbox, recorded by the gateway ({found.turns})"
    )
    if found.prompt_tokens is not None:
        room = config.model.max_context_tokens
        table.add_row("first prompt", f"{found.prompt_tokens:,} tokens, of {room:,} that fit")
    for promise, kept in found.guarantees.items():
        table.add_row(f"sandbox: {promise}", kept)
    stdout().print(table)
