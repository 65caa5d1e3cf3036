"""Find what would refuse a run, before anything of it is made: tasks, policy files, engine.

Nothing is written and nothing is generated; an engine that runs already is asked three short
questions. Every fault is returned, with the exit code that it has when a run meets it later.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from conf.errors import AgentrlError, ConfigError, ExitCode
from conf.plan_numbers import find_short_window
from conf.schema import Config
from conf.sections.engine import FixedEngineConfig, SglangEngineConfig
from conf.sections.model import EndpointModelConfig, TinyModelConfig
from conf.sections.training import LocalTrainerConfig
from conf.task_sets import list_sets
from runners.campaigns.preflight.plugins import find_plugin_errors
from runners.campaigns.preflight.teacher_check import require_teacher
from runners.campaigns.preflight.tokenizer_check import PolicyFormat, check_tokenizer
from runners.engines.capabilities import check_answers, check_context
from runners.engines.contract import EngineError
from runners.engines.fixed_engines import check_fixed_engine
from runners.engines.server_check import (
    EngineServers,
    EngineUnfit,
    check_each,
    require_checks,
    run_check,
)
from runners.gateway.texts.chat_template import make_renderer
from runners.observe.live import TASK_CHECK
from runners.observe.sinks import find_sink_errors
from runners.records.checkpoints import find_given_files, find_shipped_policy
from runners.records.tokenizer import check_family, load_tokenizer
from runners.services.engine_service import list_workers
from runners.services.policy import check_examples, find_captured_shape
from runners.tasks.sets import DatasetReport, Progress, check_sets
from runners.training.contract import TrainingError
from runners.training.ranks import check_devices


class MissingError(AgentrlError):
    """Something that the run needs is not on this machine."""

    exit_code = ExitCode.PREFLIGHT


Errors = list[AgentrlError]
NoteSets = Callable[[Mapping[str, DatasetReport]], None]
"""Takes reports on sets of tasks by their places in the configuration."""


def find_start_errors(
    configs: Sequence[Config],
    *,
    benchmark: str | None = None,
    uses_policy: bool = True,
    show: Progress = lambda text: None,
    note_sets: NoteSets = lambda sets: None,
) -> Errors:
    """Return what would refuse runs of ``configs``, each fault once; blocks.

    ``benchmark``: the one that is measured; None for campaigns. ``uses_policy``: False for a
    check of tasks, which needs nothing else but sandboxes. ``show`` is told how far the tasks are
    read, ``note_sets`` the sets of each configuration.
    """
    checks: list[Callable[[Config, str | None], Iterable[AgentrlError]]]
    checks = [
        _find_plugin_errors,
        _find_sink_errors,
        partial(_find_task_errors, show=show, note_sets=note_sets),
    ]
    if uses_policy:
        checks += [_find_combination_errors, _find_policy_errors, _find_engine_errors]
    if benchmark is None:
        checks += [_find_trainer_errors, _find_example_errors, _find_teacher_errors]
    found: dict[str, AgentrlError] = {}
    for config in configs:
        for check in checks:
            for error in check(config, benchmark):
                found.setdefault(str(error), error)
    return list(found.values())


def _find_plugin_errors(config: Config, benchmark: str | None) -> Iterator[AgentrlError]:
    yield from find_plugin_errors(config)


def _find_sink_errors(config: Config, benchmark: str | None) -> Iterator[AgentrlError]:
    yield from find_sink_errors(config)
    observe = config.observe
    chosen = {
        "observe.wandb.project": observe.wandb.project,
        "observe.mlflow.uri": observe.mlflow.uri,
    }
    for key, value in chosen.items():
        if benchmark is not None and value is not None:
            yield ConfigError(
                f"{key}={value}: an evaluation has no steps to track: leave it out, and read "
                "`agentrl status RUN --json`"
            )


def _find_task_errors(
    config: Config, benchmark: str | None, *, show: Progress, note_sets: NoteSets
) -> Iterator[AgentrlError]:
    """Read the tasks and compare their number with what the run needs."""
    task, wanted = config.task, config.eval
    if benchmark not in (None, TASK_CHECK, task.kind):
        yield ConfigError(
            f"task={task.kind} is not what the benchmark {benchmark} measures: drop the override "
            f"(it is task={benchmark})"
        )
        return
    try:
        reports = check_sets(config, show=show)
    except AgentrlError as error:
        yield error
        return
    note_sets(reports)
    if benchmark is None or "task" not in reports:
        return  # generated, built in, or on the nodes only
    report = reports["task"]
    matching = sum(fnmatchcase(each.id, wanted.ids) for each in report.tasks)
    if matching <= wanted.offset:
        yield ConfigError(
            f"eval.ids={wanted.ids} eval.offset={wanted.offset} select no task ({matching} of "
            f"{len(report.tasks)} tasks of {report.path} match eval.ids): change one of them"
        )


def _find_combination_errors(config: Config, benchmark: str | None) -> Iterator[AgentrlError]:
    """Find choices that work each by itself, and never together."""
    model = config.model
    if isinstance(model, EndpointModelConfig) and benchmark is None:
        yield ConfigError(
            f"engine={config.engine.kind} has no weights that a campaign could start from: measure "
            "it with `agentrl eval BENCHMARK`, or record with `agentrl gateway`"
        )
    if isinstance(model, TinyModelConfig) and (foreign := list_sets(config)):
        chosen = foreign[0].key.partition(".")[0]
        kind = getattr(config, chosen).kind
        instead = (
            "task=bugfix" if benchmark is None else "agentrl tasks check, which needs no model"
        )
        yield ConfigError(
            f"model=tiny knows the words of task=bugfix only, and {chosen}={kind} is chosen: it "
            "could solve none of them. Choose another model (e.g. model=local engine=sglang "
            f"engine.url=…), or {instead}"
        )
    if (
        isinstance(model, TinyModelConfig)
        and isinstance(config.engine, SglangEngineConfig)
        and None in (model.path, model.tokenizer)
    ):
        yield ConfigError(
            f"model=tiny comes with agentrl, and engine.url={config.engine.url} serves "
            "another: choose the model that it serves (model=local model.tokenizer=DIR "
            "model.renderer=FAMILY); for a served tiny policy set model.path and model.tokenizer"
        )
    if fault := find_short_window(config):
        yield ConfigError(fault)


def _find_policy_errors(config: Config, benchmark: str | None) -> Iterator[AgentrlError]:
    """Read the policy's config.json and tokenizer, as far as they exist."""
    model = config.model
    if model.path is not None and model.path.is_dir():
        try:
            _read_model_config(model.path)
            find_captured_shape(config, model.path)
        except AgentrlError as error:
            yield error
    try:
        if model.tokenizer is not None and model.tokenizer.is_dir():
            _load_format(config)
        elif not isinstance(model, EndpointModelConfig):  # it renders itself
            check_family(model.renderer)
        if isinstance(model, TinyModelConfig) and None in find_given_files(model):
            find_shipped_policy()
    except AgentrlError as error:
        yield error


def _find_trainer_errors(config: Config, benchmark: str | None) -> Iterator[AgentrlError]:
    """Look for the package that a trainer on this machine needs."""
    trainer = config.trainer
    if not isinstance(trainer, LocalTrainerConfig) or not config.run.steps:
        return
    if trainer.lora.rank and find_spec("peft") is None:
        yield MissingError(
            "trainer.lora needs the package peft: pip install 'agentrl-campaigns[lora]'"
        )


def find_device_errors(configs: Iterable[Config]) -> Errors:
    """Return an error for every trainer whose GPUs torch does not see on this machine.

    Apart from ``find_start_errors``, as a plan for a GPU is made on machines without one.
    """
    found: dict[str, AgentrlError] = {}
    for config in configs:
        trainer = config.trainer
        if not isinstance(trainer, LocalTrainerConfig) or not config.run.steps:
            continue
        try:
            check_devices(trainer)
        except TrainingError as error:
            found.setdefault(str(error), MissingError(str(error)))
    return list(found.values())


def _find_example_errors(config: Config, benchmark: str | None) -> Iterator[AgentrlError]:
    """Read the examples of supervised steps, with the policy's tokenizer if it is here."""
    try:
        check_examples(config)
    except AgentrlError as error:
        yield error


def _find_teacher_errors(config: Config, benchmark: str | None) -> Iterator[AgentrlError]:
    """Ask the teacher whether it answers, reads the policy's tokens and scores them."""
    try:
        asyncio.run(require_teacher(config, config.model.tokenizer))
    except AgentrlError as error:
        yield error


def _read_model_config(directory: Path) -> None:
    """Raise ConfigError unless ``config.json`` is an object that names an architecture."""
    file = directory / "config.json"
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.path={directory}: {file.name} cannot be read ({error}): copy the checkpoint "
            "again, or name another"
        ) from error
    if not isinstance(content, dict) or not {"model_type", "architectures"} & content.keys():
        raise ConfigError(
            f"model.path={directory}: {file.name} names neither model_type nor architectures: it "
            "is no checkpoint's; copy it again, or name another"
        )


def _load_format(config: Config) -> PolicyFormat:
    """Return the tokenizer and the renderer; raises ConfigError."""
    model = config.model
    assert model.tokenizer is not None
    tokenizer = load_tokenizer(model.tokenizer)
    renderer = make_renderer(tokenizer, model.renderer, model.tokenizer)
    return PolicyFormat(tokenizer, renderer, model.renderer, model.tokenizer)


def _find_engine_errors(config: Config, benchmark: str | None) -> Errors:
    """Ask an engine that runs already whether it answers, and with the run's model."""
    if isinstance(config.engine, FixedEngineConfig):
        try:
            require_checks(asyncio.run(check_fixed_engine(config, config.engine)))
        except AgentrlError as error:
            return [error]
    if not isinstance(config.engine, SglangEngineConfig):
        return []
    policy_format = None
    if config.model.tokenizer is not None and config.model.tokenizer.is_dir():
        with suppress(AgentrlError):  # a fault of the policy's files, which is reported as such
            policy_format = _load_format(config)
    return asyncio.run(_look_at_engine(config, config.engine, policy_format))


async def _look_at_engine(
    config: Config, engine: SglangEngineConfig, policy_format: PolicyFormat | None
) -> Errors:
    servers = EngineServers(engine.url, list_workers(engine))
    try:
        answers = await run_check("answers", lambda: check_answers(servers))
        if not answers.ok:
            return [EngineError(answers.detail, retryable=True, unreachable=True)]
        window = config.model.max_context_tokens
        checks = {"context length": partial(check_context, wanted=window)}
        if policy_format is not None:
            checks["tokenizer"] = partial(check_tokenizer, policy_format=policy_format)
        results = [
            await run_check(name, partial(check_each, servers.servers, check))
            for name, check in checks.items()
        ]
    finally:
        await servers.close()
    return [EngineUnfit(f"engine: {r.name}: {r.detail}") for r in results if not r.ok]


def refuse(errors: Sequence[AgentrlError]) -> None:
    """Raise all errors as one, with their exit code if it is the same; return if there is none."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise StartRefused(errors)


class StartRefused(AgentrlError):
    """Several things would refuse the run."""

    def __init__(self, errors: Sequence[AgentrlError]) -> None:
        codes = {error.exit_code for error in errors}
        self.exit_code = codes.pop() if len(codes) == 1 else ExitCode.PREFLIGHT
        super().__init__("\n".join(str(error) for error in errors))
