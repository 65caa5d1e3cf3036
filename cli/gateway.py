"""``agentrl gateway``: serve the gateway alone, for any agent and any engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import PROGRAM, ConfigDir, Json, Overrides, examples
from conf.errors import AgentrlError, ExitCode

if TYPE_CHECKING:
    from conf.schema import Config

EXAMPLES = examples(
    "agentrl gateway",
    "agentrl gateway engine=sglang engine.url=http://127.0.0.1:30000 "
    "model.tokenizer=DIR model.renderer=qwen3",
    "agentrl gateway engine=openai engine.url=http://127.0.0.1:8080 engine.model=NAME",
    "agentrl gateway --once --out records.jsonl -- python my_agent.py",
)
ATTACHED = {
    "model.max_context_tokens": "262144",
    "sampling.max_new_tokens": "16384",
}
"""Defaults of engines that run already: a served model, with long answers, instead of the tiny one.
"""
SERVED = ("sglang", "vllm", "openai", "anthropic")
NO_TRAINING = {"run.steps": "0", "run.eval_tasks": "0"}
"""Recording trains nothing; the rules ask, since the weights of some engines are fixed."""


class GatewayUsageError(AgentrlError):
    """The options do not fit together, or there is no such program."""

    exit_code = ExitCode.USAGE


def gateway(
    context: typer.Context,
    overrides: Overrides = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Run the program named after -- against the gateway, print its trajectory to "
            "stderr, and end with its exit code.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --once: write its record, as dump-trajectories does.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    _config_dir: ConfigDir = None,
) -> None:
    """Serve the gateway alone: attach any agent to any engine, and record every turn.

    The first line on stdout is JSON with url and admin_key; ctrl-C ends the gateway. With
    engine=sglang, vllm, openai or anthropic the model is the one that the engine serves, and the
    defaults are model.max_context_tokens=262144 sampling.max_new_tokens=16384. With openai and
    anthropic, APIs of texts, tokens are not known. --once -- PROGRAM ARGUMENTS runs a program with
    OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY in its environment, in
    no sandbox: with your rights. With --json its output goes to stderr.
    """
    command = _check_program(context.meta[PROGRAM], once=once, out=out, as_json=as_json)
    import uvloop

    from conf.exact_tokens import describe_inexactness
    from conf.sections.engine import EmbeddedEngineConfig
    from conf.sections.model import EndpointModelConfig
    from runners.campaigns.jobs import new_job
    from runners.observe.console import report_warning
    from runners.services.policy import prepare_policy

    job = new_job(_with_defaults(overrides or []), kind="gateway")
    context.obj.run_dir = job.run_dir
    model = job.config.model
    weights: Path | None
    tokenizer: Path | None
    if (inexact := describe_inexactness(job.config)) is not None:
        report_warning(inexact)
    if isinstance(model, EndpointModelConfig):
        weights = tokenizer = None
    elif isinstance(job.config.engine, EmbeddedEngineConfig) or model.tokenizer is None:
        policy = prepare_policy(job.config, job.run_dir)
        weights, tokenizer = policy.weights, policy.tokenizer
    else:
        weights, tokenizer = model.path or model.tokenizer, model.tokenizer
    if not command:
        uvloop.run(_serve(job.config, job.run_dir, weights, tokenizer))
        return
    code = uvloop.run(
        _run_program(job.config, job.run_dir, weights, tokenizer, command, as_json=as_json, out=out)
    )
    raise typer.Exit(code)


def _check_program(command: list[str], *, once: bool, out: Path | None, as_json: bool) -> list[str]:
    """Return the program and its arguments, empty without ``--once``; raises GatewayUsageError."""
    import shutil

    if once and not command:
        raise GatewayUsageError(
            "--once runs a program: name it after --, as in `agentrl gateway --once -- my-agent`"
        )
    if not once and (command or out or as_json):
        raise GatewayUsageError("--out, --json and a program after -- belong to --once: add it")
    if command and shutil.which(command[0]) is None:
        raise GatewayUsageError(f"there is no program {command[0]!r}, or it cannot be executed")
    if out is not None and not out.resolve().parent.is_dir():
        raise GatewayUsageError(f"--out {out}: there is no directory {out.resolve().parent}")
    return command


async def _serve(
    config: Config, run_dir: Path, weights: Path | None, tokenizer: Path | None
) -> None:
    """Serve until SIGINT or SIGTERM; raises AgentrlError if a service cannot start or dies."""
    import asyncio
    import signal

    from runners.observe.console import report_warning
    from runners.services.gateway_alone import serve_alone

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve_alone(
        config,
        run_dir,
        weights,
        tokenizer,
        announce=lambda info: _announce(info, run_dir),
        stop=stop,
        report=report_warning,
    )


async def _run_program(
    config: Config,
    run_dir: Path,
    weights: Path | None,
    tokenizer: Path | None,
    command: list[str],
    *,
    as_json: bool,
    out: Path | None,
) -> int:
    """Run the program and report its trajectory; return its exit code. Raises AgentrlError."""
    from cli.gateway_once import describe_rollout, read_rollout, render_rollout, write_record
    from cli.invocation import print_json, stderr
    from runners.observe.console import report_warning
    from runners.services.gateway_alone import run_attached

    code = await run_attached(
        config,
        run_dir,
        weights,
        tokenizer,
        command,
        # stdout is the document's
        stdout=sys.stderr.fileno() if as_json else None,
        report=report_warning,
    )
    rollout = read_rollout(run_dir)
    short = describe_rollout(rollout)
    if out is not None:
        write_record(rollout, out)
    if as_json:
        print_json({"exit_code": code, "run_dir": str(run_dir), **short})
    else:
        stderr().print(render_rollout(short))
        stderr().print(f"run directory {run_dir}", soft_wrap=True)
    return code


def _with_defaults(overrides: list[str]) -> list[str]:
    """Return the overrides with this command's defaults before them."""
    given = {override.lstrip("+").partition("=")[0] for override in overrides}
    served = not {f"engine={kind}" for kind in SERVED}.isdisjoint(overrides)
    defaults = {**NO_TRAINING, **ATTACHED} if served else NO_TRAINING
    return [f"{key}={value}" for key, value in defaults.items() if key not in given] + overrides


def _announce(info: dict[str, Any], run_dir: Path) -> None:
    sys.stdout.write(json.dumps({**info, "run_dir": str(run_dir)}) + "\n")
    sys.stdout.flush()
