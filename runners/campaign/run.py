"""Run a campaign in this process: its driver, its stack, its result."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from conf.schema import Config
from runners.campaign.loop import Campaign, show_step
from runners.campaign.result import CampaignResult, summarize
from runners.campaign.stack import running_stack
from runners.faults.wiring import metrics_faults
from runners.observe.metrics import MetricsWriter
from runners.observe.progress import Progress
from runners.observe.summary import write_reward_curve
from runners.runtime.driver import Driver, open_run
from runners.store.run_store import RunStore


def run_campaign(config: Config, run_dir: Path, *, resume: bool = False) -> CampaignResult:
    """Run, or continue, the campaign in ``run_dir``; returns how it ended.

    Raises AgentrlError only for what makes a start impossible (a directory that holds another run,
    a damaged store); what happens later is in the result's ``exit_code`` and ``message``.
    """
    with open_run(config, run_dir, resume=resume) as store:
        progress = Progress(store.run_dir.name, config.run.steps)
        _show_earlier(progress, store)
        driver = Driver(config, store, progress)
        end = driver.run(
            partial(_work, config, store, progress, driver), partial(write_reward_curve, store)
        )
        summary = summarize(store, wall_s=end.wall_s)
    return CampaignResult(summary, end.exit_code, end.message, asked_to_stop=end.asked_to_stop)


async def _work(config: Config, store: RunStore, progress: Progress, driver: Driver) -> None:
    written = MetricsWriter(store.run_dir, tensorboard=config.observe.tensorboard)
    metrics = metrics_faults(config.faults, store, written)
    try:
        async with running_stack(
            config,
            await driver.policy(),
            store,
            watch=progress.watch,
            on_service_exit=driver.service_gone,
        ) as stack:
            campaign = Campaign(
                config,
                store,
                stack,
                progress=progress,
                metrics=metrics,
                draining=driver.draining,
            )
            await campaign.run()
    finally:
        written.close()


def _show_earlier(progress: Progress, store: RunStore) -> None:
    """Show what earlier executions of the run did."""
    for row in store.steps():
        if row.state == "done":
            show_step(progress, row.step, row.metrics)
    for evaluation in store.evaluations():
        if evaluation.result["solve_rate"] is not None:
            progress.evaluated(evaluation.step, evaluation.result["solve_rate"])
