"""Run a campaign in this process: start its services and its trainer, drive it, sum it up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from conf.errors import ConfigError, ExitCode
from conf.lora import find_served_lora
from conf.schema import Config
from conf.sections.training import LocalTrainerConfig
from runners.campaigns.loop import Campaign
from runners.campaigns.overlap.recorded import RecordedSchedule
from runners.campaigns.overlap.steps import find_served
from runners.campaigns.preflight.teacher_check import require_teacher
from runners.campaigns.resumption import REPLAY, check_resumable, rewind_store
from runners.campaigns.teaching import Teacher
from runners.engines.contract import ADAPTER_NAME
from runners.observe.adviser import advise_run
from runners.observe.figures import MetricsWriter
from runners.observe.live import CampaignResult, Progress, summarize
from runners.records.checkpoints import CHECKPOINTS, Checkpoint, CheckpointError, find_latest
from runners.records.store import RunStore
from runners.services.driver import RunDriver, note_duplicates, open_metrics, open_run
from runners.services.policy import Policy, find_captured_shape, keep_examples, open_examples
from runners.services.services import start_services
from runners.system.concurrency import task_group
from runners.system.processes import ServiceStarter
from runners.system.processes.ledger import Ledger
from runners.tasks.sets import load_tasks
from runners.training.ranks import RankSettings, Trainer, start_trainer

START = "start"
"""Directory of the adapters of a run's start, among its checkpoints."""

WEIGHT_PLAN = "weight_plan.json"
"""File of the weights that sampled each token of a run that is replayed, in the run directory."""


def run_campaign(
    config: Config,
    run_dir: Path,
    *,
    resume: bool = False,
    rewind: bool = False,
    replayed: Path | None = None,
) -> CampaignResult:
    """Run, or continue, the campaign in ``run_dir``; return how it ended.

    With ``rewind`` a resumed campaign drops the steps whose checkpoints are lost, and repeats
    them; with ``replayed`` a new one repeats the schedule of the run in that directory.

    Raises AgentrlError only for what makes a start impossible (a directory that holds another run,
    a damaged store); what happens later is in the result's ``exit_code`` and ``message``.
    """
    with open_run(config, run_dir, resume=resume) as store:
        if resume:
            check_resumable(store, rewind=rewind)
            if rewind:
                rewind_store(store)
        progress = Progress(store.run_dir.name, config.run.steps)
        _show_earlier(progress, store)
        driver = RunDriver(config, store, progress)
        end = driver.run(partial(_run, config, store, progress, driver, replayed))
        summary = summarize(store, wall_s=end.wall_s)
    return CampaignResult(summary, end.exit_code, end.message, stop_requested=end.stop_requested)


async def _run(
    config: Config,
    store: RunStore,
    progress: Progress,
    driver: RunDriver,
    replayed: Path | None,
) -> None:
    with open_metrics(config, store) as metrics:
        policy = driver.policy()
        async with _open_campaign(
            config, policy, store, progress, metrics, driver, replayed
        ) as campaign:
            await campaign.run()


@asynccontextmanager
async def _open_campaign(
    config: Config,
    policy: Policy,
    store: RunStore,
    progress: Progress,
    metrics: MetricsWriter,
    driver: RunDriver,
    replayed: Path | None,
) -> AsyncIterator[Campaign]:
    """Start services, trainer and tasks side by side, from the newest checkpoint if there is one;
    yield the campaign and stop everything afterwards.
    """
    saved = find_latest(store.run_dir / CHECKPOINTS)
    adapter = ADAPTER_NAME if find_served_lora(config) is not None else None
    version, served = find_served(config, store, saved)
    recorded = plan = None
    if replayed is not None:
        store.event(REPLAY, {"run": str(replayed)})
        plan = store.run_dir / WEIGHT_PLAN
        recorded = await asyncio.to_thread(RecordedSchedule, replayed, config, plan)
    async with AsyncExitStack() as exits:
        async with task_group() as starting:
            services = starting.create_task(
                exits.enter_async_context(
                    start_services(
                        config,
                        store,
                        weights=served.path if served and not adapter else policy.weights,
                        tokenizer=policy.tokenizer,
                        version=version,
                        watch=progress.watch,
                        on_service_exit=driver.note_service_exit,
                        adapter=adapter,
                        weight_plan=plan,
                    )
                )
            )
            # Created after the engine's task: the engine's process then imports torch while the
            # trainer's thread does, instead of afterwards.
            starter = ServiceStarter(store.run_dir, exits, driver.note_service_exit, Ledger(store))
            trainer = starting.create_task(_open_trainer(config, policy, saved, starter))
            tasks = starting.create_task(asyncio.to_thread(load_tasks, config))
            starting.create_task(require_teacher(config, policy.tokenizer))
            examples = starting.create_task(
                asyncio.to_thread(open_examples, config, policy.tokenizer, policy.weights)
            )
        if reason := trainer.result().no_tree:
            progress.add_note(f"each sample is trained as a row, not in a prefix tree: {reason}")
        keep_examples(store, examples.result())
        note_duplicates(store, tasks.result())
        if adapter is not None:
            first = store.run_dir / CHECKPOINTS / START if served is None else served.path
            if saved is None:
                await asyncio.to_thread(_save_adapters, trainer.result(), first)
            await services.result().engine.update_weights(first, version)
        yield Campaign(
            config,
            store,
            services.result(),
            trainer=trainer.result(),
            tokenizer=policy.tokenizer,
            resumed=saved,
            served=version,
            recorded=recorded,
            tasks=tasks.result(),
            examples=examples.result(),
            teacher=_connect_teacher(config, exits),
            routing=find_captured_shape(config, policy.weights),
            progress=progress,
            metrics=metrics,
            draining=driver.draining,
        )


def _connect_teacher(config: Config, exits: AsyncExitStack) -> Teacher | None:
    """Return a client of the run's teacher, if it has one; ``exits`` close it."""
    trainer = config.trainer
    if not isinstance(trainer, LocalTrainerConfig) or trainer.distill.url is None:
        return None
    teacher = Teacher(trainer.distill.url, deadline_s=trainer.distill.deadline_s)
    exits.push_async_callback(teacher.close)
    return teacher


async def _open_trainer(
    config: Config,
    policy: Policy,
    saved: Checkpoint | None,
    starter: ServiceStarter,
) -> Trainer:
    """Return the trainer, in this process or in those that ``starter`` starts and ends."""
    trainer = config.trainer
    if not isinstance(trainer, LocalTrainerConfig):
        raise ConfigError(
            [f"trainer={trainer.kind} trains on a cluster: start it with `agentrl launch`"]
        )
    settings = RankSettings(
        trainer=trainer,
        routing=config.routing_replay,
        weights=policy.weights,
        temperature=config.sampling.temperature,
        seed=config.seed,
        merges_adapters=find_served_lora(config) is None,
        checkpoint=saved.path if saved else None,
        step=saved.step if saved else 0,
        ranks=trainer.devices,
    )
    # a step must not hold the driver up
    apart = trainer.devices > 1 or config.run.overlap != "none"
    return await start_trainer(settings, starter, apart=apart)


def _save_adapters(trainer: Trainer, directory: Path) -> None:
    """Write the adapters that a run begins with, which change nothing; raises CheckpointError."""
    try:
        trainer.save_adapters(directory)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {directory}: {error}", ExitCode.SERVICE_GONE
        ) from error


def _show_earlier(progress: Progress, store: RunStore) -> None:
    """Show the steps and evaluations of earlier executions of the run."""
    for row in store.steps():
        if row.state == "done":
            progress.add_step_metrics(row.step, row.metrics)
    progress.alarms = advise_run(store)
    for evaluation in store.evaluations():
        if evaluation.result.get("solve_rate") is not None:
            progress.add_evaluation_result(evaluation.step, evaluation.result)
