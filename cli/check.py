"""``agentrl check``: try everything that a run needs, before the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cli.arguments import Json, Overrides, examples
from cli.invocation import print_json, report_problems, report_warning, stderr, stdout

if TYPE_CHECKING:
    from conf.schema import Config
    from launch.preflight import Problem
    from runners.engines.server_check import CheckResult
    from runners.preflight.agent_turn import AgentTurn
    from runners.tasks.datasets import DatasetReport

EXAMPLES = examples(
    "agentrl check",
    "agentrl check harness=claude_code",
    "agentrl check engine=sglang engine.url=http://127.0.0.1:30000 routing_replay=rollout",
    "agentrl check task=swebench task.path=instances.jsonl",
    "agentrl check harness=claude_code harness.binary=./claude --json",
)


def check(context: typer.Context, overrides: Overrides = None, as_json: Json = False) -> None:
    """Check everything that a run needs, and let its agent program take one turn.

    Task files are read; every malformed row is named with its line (exit code 5). A missing agent
    program is installed into the user's cache. Programs, paths and ports are checked, and every
    feature of an SGLang server, or of a router in front of several, that a run needs;
    engine=sglang_launch starts a server for it. Then the agent takes one turn in a sandbox, through
    the gateway; with our own engine a fixed reply answers it. Exit code 3: something is missing.
    """
    import tempfile

    import uvloop

    from cli.jobs import new_job
    from launch.preflight import find_problems
    from runners.harnesses.registry import install_harness
    from runners.preflight.run_check import check_run
    from runners.tasks.datasets import check_dataset

    job = new_job(overrides or [], kind="check")
    tasks = check_dataset(job.config.task)
    with stderr().status(f"harness={job.config.harness.kind}: looking for the program…"):
        install_harness(job.config.harness)
    problems = find_problems(job.config, job.run_dir)
    report_problems(problems)
    with (
        tempfile.TemporaryDirectory(prefix="agentrl-check-") as work,
        stderr().status(f"engine={job.config.engine.kind}: trying what a run needs…") as status,
    ):

        def report(engine: list[CheckResult]) -> None:
            status.update(f"harness={job.config.harness.kind}: one turn…")
            if not as_json:
                _show_engine(engine)

        engine, found = uvloop.run(check_run(job.config, Path(work), report=report))
    limit = job.config.model.max_context_tokens
    if found.prompt_tokens is not None and found.prompt_tokens > limit:
        report_warning(
            f"the first prompt has {found.prompt_tokens} tokens, and model.max_context_tokens="
            f"{limit}: no rollout could take a turn; choose a model with a longer context"
        )
    if as_json:
        print_json(_document(job.config, problems, found, tasks, engine))
    else:
        _show(job.config, found, tasks)


def _document(
    config: Config,
    problems: list[Problem],
    found: AgentTurn,
    tasks: DatasetReport | None,
    engine: list[CheckResult],
) -> dict[str, Any]:
    return {
        "engine": {f.name: {"ok": f.ok, "detail": f.detail} for f in engine},
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


def _show_engine(results: list[CheckResult]) -> None:
    for result in results:
        # A fatal failure is printed once only, as the error of the command.
        state = "ok" if result.ok else "warning" if not result.fatal else "problem, see below"
        detail = f": {result.detail}" if result.ok or not result.fatal else ""
        line = f"engine: {result.name}  {state}{detail}"
        stdout().print(line, markup=False, soft_wrap=True)


def _show(config: Config, found: AgentTurn, tasks: DatasetReport | None) -> None:
    from rich.table import Table

    from conf.sections.moe import MoeModel

    table = Table.grid(padding=(0, 2))
    if tasks is not None:
        kinds = ", ".join(f"{number} by {kind}" for kind, number in tasks.kinds.items())
        table.add_row(
            "tasks",
            f"{len(tasks.tasks)} of {len(tasks.repositories)} repositories, graded: {kinds}",
        )
    if isinstance(config.model, MoeModel) and config.model.path is not None:
        table.add_row("checkpoint", f"its config.json agrees with model={config.model.kind}")
    version = found.result.facts.get("version")
    table.add_row("agent program", f"{config.harness.kind} {version or ''}".strip())
    table.add_row(
        "one turn", f"{found.seconds:.1f} s in the sandbox, recorded by the gateway ({found.turns})"
    )
    if found.prompt_tokens is not None:
        table.add_row("first prompt", f"{found.prompt_tokens:,} tokens")
    for guarantee, state in found.guarantees.items():
        table.add_row(f"sandbox: {guarantee}", state)
    stdout().print(table)
