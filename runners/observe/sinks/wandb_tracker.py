"""Track a run with Weights & Biases.

An entry is one row of its history, whose own step is the entry's place, so that the server drops
one that it has (history steps only increase); charts have ``step`` as their axis.
"""

from __future__ import annotations

import secrets
from typing import Any

from conf.sections.observe import WandbConfig
from runners.observe.sinks.tracker import CLOSE_S, Ending, StepEntry, TrackedRun

INIT_S = 30.0
"""Time to begin a run; then it is tried again."""
EXIT_CODES = {Ending.FINISHED: 0, Ending.STOPPED: 255, Ending.FAILED: 1}
"""W&B's own hook reports 255 for ctrl-C, and 1 for an exception."""


class WandbTracker:
    """Writes to one run of W&B."""

    keeps_at_once = False
    """Its own process buffers rows, and ends without writing them when ours is killed."""

    def __init__(self, config: WandbConfig, run: TrackedRun) -> None:
        self._config = config
        self._tracked = run
        self._id = secrets.token_hex(8)
        self._run: Any = None

    def open(self, run_id: str | None) -> str:
        """Begin a run, or go on with one; offline, a folder of files for each start."""
        import wandb

        self._id = run_id or self._id  # the same one when it is tried again
        self._tracked.directory.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=self._config.project,
            entity=self._config.entity,
            name=self._config.name or self._tracked.name,
            id=self._id,
            # offline it has nobody to ask, and the files of one id are put together by `wandb sync`
            resume="allow" if self._config.mode == "online" else None,
            mode=self._config.mode,
            dir=self._tracked.directory,
            config=dict(self._tracked.config),
            reinit="create_new",  # a notebook's own run, or an earlier one of ours, is left alone
            settings=wandb.Settings(
                console="off",  # what the run prints is its own, and may show a task's texts
                disable_code=True,
                disable_git=True,
                x_save_requirements=False,
                silent=True,
                init_timeout=INIT_S,
                finish_timeout=CLOSE_S,  # also of W&B's own hook at the end of the process
                finish_timeout_raises=True,  # else rows that stay here would count as sent
            ),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        return self._id

    def log(self, entry: StepEntry) -> None:
        """Hand a row to W&B's own process, which uploads it."""
        self._run.log({"step": entry.step, **entry.values}, step=entry.place, commit=True)

    def close(self, ending: Ending) -> None:
        """Finish the run; raises TimeoutError if rows are not uploaded after a while, which stay in
        its files.
        """
        self._run.finish(exit_code=EXIT_CODES[ending])
