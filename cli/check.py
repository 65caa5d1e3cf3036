"""``agentrl check``: try everything that a run needs, before the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import CommandAndOverrides, ConfigDir, Json, examples, split_command
from cli.invocation import print_json, stderr, stdout
from cli.task_counts import describe_sets
from cli.upgrade import compare_versions, compare_with_recordings

if TYPE_CHECKING:
    from conf.errors import AgentrlError
    from conf.schema import Config
    from launch.preflight import Problem
    from runners.campaigns.execution import Reports
    from runners.campaigns.jobs import Job
    from runners.campaigns.preflight.run_check import AgentTurn, EngineReport

EXAMPLES = examples(
    "agentrl check",
    "agentrl check harness=claude_code",
    "agentrl check harness=claude_code@2.1.329",
    "agentrl check harness=claude_code@2.1.329 --against runs/20260101-120000-linear",
    "agentrl check run engine=sglang engine.url=http://127.0.0.1:30000 model.path=weights "
    "model.tokenizer=weights model.renderer=qwen3 routing_replay=rollout",
    "agentrl check eval swebench task.path=instances.jsonl engine=sglang "
    "engine.url=http://127.0.0.1:30000 model.tokenizer=weights model.renderer=qwen3",
    "agentrl check eval swebench task.path=instances.jsonl --gold",
)


def check(
    overrides: CommandAndOverrides = None,
    _config_dir: ConfigDir = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Start from this configuration (a run's config.json) instead of the defaults.",
            show_default=False,
        ),
    ] = None,
    gold: Annotated[
        bool,
        typer.Option("--gold", help="Check what `tasks check` needs: tasks, no policy, no agent."),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Replay rollouts of this run instead, with the agent program of harness="
            "NAME@VERSION: what does it change? Exit code 1: training signal is lost.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check everything that a run needs, and let its agent program take one turn.

    It takes the arguments of `agentrl run` and `agentrl eval BENCHMARK`, and says everything that
    they would refuse: task files are read, every malformed row is named with its line (exit code
    5), counts are compared, the engine is asked. A missing agent program is installed into the
    user's cache. Programs, paths and ports are checked, and every feature of an SGLang server, or
    of a router in front of several, that a run needs; engine=sglang_launch starts a server for it.
    Then the agent takes one turn in a sandbox, through the gateway; with our own engine a fixed
    reply answers it. In a scenario with summaries it must sum up its history at the window. Exit
    code 3: something is missing.

    With harness=claude_code@VERSION or codex@VERSION alone it replays a recording that comes with
    agentrl instead: what does that version change? Exit code 1: training signal is lost.
    """
    from launch.job_preflight import find_job_problems
    from launch.plan import plan_job
    from launch.preflight import find_problems
    from launch.requirements import warn_of_unmet
    from runners.campaigns.execution import find_start_errors, refuse_start
    from runners.campaigns.jobs import new_jobs
    from runners.tasks.sets import check_sets

    if against is not None:
        compare_versions(against, overrides or [], as_json=as_json)
    compare_with_recordings(overrides or [], as_json=as_json)
    benchmark, lines = split_command(overrides or [])
    jobs = new_jobs(lines, config, kind="check")
    on_cluster = jobs[0].config.launch.kind != "local"
    errors = find_start_errors(
        jobs,
        benchmark=benchmark,
        uses_policy=not gold,
        here=benchmark is None and not on_cluster,
    )
    if not gold:
        errors += _install(jobs)
    problems = [
        problem
        for job in jobs
        for problem in (
            find_job_problems(plan_job(job.config))
            if on_cluster
            else find_problems(job.config, job.run_dir, trains=job.config.run.steps > 0)
        )
    ]
    problems += warn_of_unmet()
    refuse_start(problems, errors)
    with stderr().status("reading the tasks…") as status:
        sets = (
            {} if on_cluster else check_sets(jobs[0].config, make_builtin=True, show=status.update)
        )
    _warn_about_canaries(jobs[0].config, sets)
    if gold or on_cluster:  # the nodes of a job let its agent take a turn themselves
        _show_tasks_only(sets, problems, as_json=as_json)
        return
    for number, each in enumerate(_distinct([job.config for job in jobs])):
        engine, found = _take_turn(each, show_engine=not as_json)
        _warn_about_length(each, found)
        if as_json and not number:
            document = _document(each, problems, found, sets, engine)
        elif not as_json:
            _show(each, found, sets)
    if as_json:
        print_json(document)


def _warn_about_canaries(config: Config, sets: Reports) -> None:
    """Name the number of tasks on which solved patches will stay unverified."""
    from runners.observe.console import report_warning
    from runners.tasks.grading import count_uncheckable

    for key, report in sets.items():
        if not getattr(config, key.partition(".")[0]).canaries:
            continue
        for reason, number in count_uncheckable(report.tasks).items():
            report_warning(
                f"{number} of {len(report.tasks)} tasks of {key} are {reason}: no canary can check "
                "their solved patches (report.json: unverified); see docs/security.md"
            )


def _install(jobs: list[Job]) -> list[AgentrlError]:
    """Install the agent programs that are missing; return what went wrong."""
    from runners.campaigns.preflight.run_check import install_programs

    with stderr().status("looking for agent programs…") as status:
        return install_programs((job.config for job in jobs), show=status.update)


def _distinct(configs: list[Config]) -> list[Config]:
    """Return the configurations of a sweep whose check could have another result."""
    found: dict[tuple[str, ...], Config] = {}
    for config in configs:
        sections = (config.engine, config.model, config.harness, config.sandbox, config.scenario)
        found.setdefault(tuple(map(repr, sections)), config)
    return list(found.values())


def _take_turn(config: Config, *, show_engine: bool) -> tuple[EngineReport, AgentTurn]:
    """Check the engine, and let the agent program take one turn."""
    import tempfile

    import uvloop

    from conf.sections.harness import name_program
    from runners.campaigns.preflight.run_check import check_run

    with (
        tempfile.TemporaryDirectory(prefix="agentrl-check-") as work,
        stderr().status(f"engine={config.engine.kind}: trying what a run needs…") as status,
    ):

        def report(engine: EngineReport) -> None:
            status.update(f"{name_program(config.harness)}: one turn…")
            if show_engine:
                _show_engine(engine)

        return uvloop.run(check_run(config, Path(work), report=report))


def _warn_about_length(config: Config, found: AgentTurn) -> None:
    from runners.observe.console import report_warning

    limit = config.model.max_context_tokens
    if found.prompt_tokens is not None and found.prompt_tokens > limit:
        report_warning(
            f"the first prompt has {found.prompt_tokens} tokens, and model.max_context_tokens="
            f"{limit}: no rollout could take a turn; choose a model with a longer context"
        )


def _show_tasks_only(sets: Reports, problems: list[Problem], *, as_json: bool) -> None:
    if as_json:
        found = [{"fatal": p.fatal, "message": p.message} for p in problems]
        print_json({**describe_sets(sets), "problems": found, "exit_code": 0})
        return
    from runners.campaigns.execution import count_sets

    if not sets:
        stdout().print("tasks not read here")
    for use, number in count_sets(sets):
        stdout().print(use, number)


def _document(
    config: Config,
    problems: list[Problem],
    found: AgentTurn,
    sets: Reports,
    engine: EngineReport,
) -> dict[str, Any]:
    return {
        "engine": {f.name: {"ok": f.ok, "detail": f.detail} for f in engine},
        **describe_sets(sets),
        "harness": {"kind": config.harness.kind, **found.result.facts},
        "turns": found.turns,
        "prompt_tokens": found.prompt_tokens,
        "seconds": round(found.seconds, 3),
        "outcome": found.result.code.value,
        "sandbox": found.guarantees,
        "problems": [{"fatal": p.fatal, "message": p.message} for p in problems],
        "exit_code": 0,
    }


def _show_engine(results: EngineReport) -> None:
    for result in results:
        # A fatal failure is printed once only, as the error of the command.
        state = "ok" if result.ok else "warning" if not result.fatal else "problem, see below"
        detail = f": {result.detail}" if result.ok or not result.fatal else ""
        line = f"engine: {result.name}  {state}{detail}"
        stdout().print(line, markup=False, soft_wrap=True)


def _show(config: Config, found: AgentTurn, sets: Reports) -> None:
    from rich.table import Table

    from conf.sections.cluster_model import ClusterModel
    from conf.sections.harness import name_program
    from runners.campaigns.execution import count_sets

    table = Table.grid(padding=(0, 2))
    for use, number in count_sets(sets):
        table.add_row(use, number)
    if isinstance(config.model, ClusterModel) and config.model.path is not None:
        table.add_row("checkpoint", f"its config.json agrees with model={config.model.kind}")
    version = found.result.facts.get("version")
    table.add_row("agent program", f"{name_program(config.harness)} {version or ''}".strip())
    table.add_row(
        "one turn", f"{found.seconds:.1f} s in the sandbox, recorded by the gateway ({found.turns})"
    )
    if found.prompt_tokens is not None:
        table.add_row("first prompt", f"{found.prompt_tokens:,} tokens")
    for guarantee, state in found.guarantees.items():
        table.add_row(f"sandbox: {guarantee}", state)
    stdout().print(table)
