"""``agentrl gateway``: serve the gateway alone, for any agent and any engine."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cli.arguments import ConfigDir, Overrides, examples
from conf.errors import AgentrlError

if TYPE_CHECKING:
    from conf.schema import Config
    from runners.processes.service import ServiceError

EXAMPLES = examples(
    "agentrl gateway",
    "agentrl gateway engine=sglang engine.url=http://127.0.0.1:30000 "
    "model.tokenizer=DIR model.renderer=qwen3",
    "agentrl gateway engine=openai engine.url=http://127.0.0.1:8080 engine.model=NAME",
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


def gateway(
    context: typer.Context, overrides: Overrides = None, _config_dir: ConfigDir = None
) -> None:
    """Serve the gateway alone: attach any agent to any engine, and record every turn.

    The first line on stdout is JSON with url and admin_key; ctrl-C ends the gateway. With
    engine=sglang, vllm, openai or anthropic the model is the one that the engine serves, and the
    defaults are model.max_context_tokens=262144 sampling.max_new_tokens=16384. With openai and
    anthropic, APIs of texts, tokens are not known.
    """
    import uvloop

    from cli.invocation import report_warning
    from cli.jobs import new_job
    from conf.exactness import describe_inexactness
    from conf.sections.engine import EmbeddedEngineConfig
    from conf.sections.model import EndpointModelConfig
    from runners.runtime.policy import prepare_policy

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
        # Before the event loop starts, so that ctrl-C ends a long bootstrap at once.
        policy = prepare_policy(model, job.config.scenario, progress=_print_progress)
        weights, tokenizer = policy.weights, policy.tokenizer
    else:
        weights, tokenizer = model.path or model.tokenizer, model.tokenizer
    uvloop.run(_serve(job.config, job.run_dir, weights, tokenizer))


async def _serve(
    config: Config, run_dir: Path, weights: Path | None, tokenizer: Path | None
) -> None:
    """Serve until SIGINT or SIGTERM; raises AgentrlError if a service cannot start or dies."""
    import asyncio
    import signal

    from cli.invocation import report_warning
    from runners.diagnostics.diagnostics import install_diagnostics
    from runners.faults.wiring import make_gateway_hooks
    from runners.gateway.service import serve
    from runners.gateway.settings import GatewaySettings
    from runners.processes.service import ServiceStarter
    from runners.runtime.engine_service import start_engine
    from runners.runtime.policy import find_captured_shape
    from runners.store.run_state import State
    from runners.store.run_store import RunStore

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    died: list[ServiceError] = []

    def engine_died(error: ServiceError) -> None:
        died.append(error)
        stop.set()

    with (
        RunStore.create(run_dir, config.model_dump(mode="json")) as store,
        install_diagnostics(
            run_dir, "gateway", watchdog_s=config.observe.watchdog_s, report=report_warning
        ),
    ):
        store.set_state(State.RUNNING)
        try:
            async with AsyncExitStack() as exits:
                starter = ServiceStarter(run_dir, exits, on_exit=engine_died)
                url = await start_engine(config, starter, weights, tokenizer, 0)
                settings = GatewaySettings.from_config(
                    config,
                    run_dir=run_dir,
                    engine_url=url,
                    tokenizer=tokenizer,
                    routing=find_captured_shape(config, weights),
                    keep_rollouts=True,
                )
                await serve(
                    settings,
                    announce=lambda info: _announce(info, run_dir),
                    stop=stop,
                    hooks=make_gateway_hooks(config.faults),
                )
            if died:
                raise died[0]
        except AgentrlError as error:
            store.set_state(State.FAILED, exit_code=int(error.exit_code), message=str(error))
            raise
        store.set_state(State.DONE, exit_code=0)


def _with_defaults(overrides: list[str]) -> list[str]:
    """Return the overrides with this command's defaults before them."""
    given = {override.lstrip("+").partition("=")[0] for override in overrides}
    served = not {f"engine={kind}" for kind in SERVED}.isdisjoint(overrides)
    defaults = {**NO_TRAINING, **ATTACHED} if served else NO_TRAINING
    return [f"{key}={value}" for key, value in defaults.items() if key not in given] + overrides


def _announce(info: dict[str, Any], run_dir: Path) -> None:
    sys.stdout.write(json.dumps({**info, "run_dir": str(run_dir)}) + "\n")
    sys.stdout.flush()


def _print_progress(phase: str, done: int, total: int) -> None:
    """Print the bootstrap's progress to stderr, one line per tenth to keep log files short."""
    if total and (done == total or done * 10 // total != (done - 1) * 10 // total):
        typer.echo(f"{phase}: {done} of {total}", err=True)
