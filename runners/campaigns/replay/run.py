"""Runs an agent program again on a stored rollout, with the policy's recorded outputs.

The task's repository, a fresh sandbox, the gateway and the program are as in the rollout; only the
engine answers from the recording. This reproduces bugs and tries other versions of the program. The
run is only read.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from conf.cache import cache_root
from conf.compose import compose
from conf.errors import AgentrlError, ExitCode
from conf.schema import Config
from runners.campaigns.replay.comparison import Difference, compare_turns, pair_turns
from runners.campaigns.replay.recorded_engine import RecordedEngine
from runners.campaigns.replay.signal import SignalChange, measure_signal
from runners.gateway.client import GatewayAdmin
from runners.gateway.service import GatewayHooks, serve_inline
from runners.gateway.settings import GatewaySettings
from runners.observe.export import find_run_tokenizer
from runners.records.ids import parse_session_id
from runners.records.record import RolloutRecord, Turn
from runners.records.store import RunStore
from runners.records.tokenizer import load_tokenizer
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.rollouts.harnesses.registry import make_harness
from runners.sandboxes.backends import make_backend
from runners.tasks.contract import Task
from runners.tasks.repositories.task_repositories import TaskRepositories, describe_workspace
from runners.tasks.sets import load_tasks

UNUSED_ENGINE_URL = "http://127.0.0.1:1"
"""The gateway's engine URL; ``RecordedEngine`` answers instead."""


class ReplayError(AgentrlError):
    """The rollout cannot be replayed."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay."""

    run_dir: str
    rollout_id: str
    attempt: int
    harness: str
    version: dict[str, str | None]
    """Versions of the program, ``recorded`` and ``replayed``; None: it does not report one."""
    outcome: dict[str, str]
    """Outcomes, likewise; the recorded one includes what happened after the program's end."""
    turns: dict[str, int]
    differences: tuple[Difference, ...]
    """In the recorded order; empty if every request equals the recorded one."""
    signal: SignalChange
    exit_code: ExitCode

    def to_dict(self) -> dict[str, Any]:
        """Return the document of ``--json``."""
        first = asdict(self.differences[0]) if self.differences else None
        signal = asdict(self.signal) | {"lost": self.signal.lost}
        return asdict(self) | {
            "first": first,
            "signal": signal,
            "exit_code": int(self.exit_code),
        }


def replay(run_dir: Path, rollout: str, overrides: list[str]) -> ReplayResult:
    """Replay a rollout's attempt that counts (else its last), or the attempt ``{rollout}-a{n}``.

    ``overrides`` change the stored configuration for this replay only. Raises AgentrlError.
    """
    with RunStore.open(run_dir, read_only=True) as store:
        record = _record(store, rollout)
        turns = store.turns(record.session_id)
        stored = compose([], base=store.config())
        config = compose(overrides, base=store.config())
        tokenizer = find_run_tokenizer(store)
    if not turns:
        raise ReplayError(f"{record.session_id} has no turns: there is nothing to replay")
    if not all(turn.has_ids for turn in turns):
        raise ReplayError(
            f"{record.session_id} was answered by engine={stored.engine.kind}, an endpoint of "
            "texts: its turns have no token ids, by which a replay finds the recorded answers; "
            "record with engine=sglang or vllm to replay"
        )
    if tokenizer is None:
        raise ReplayError(
            f"{run_dir} was recorded by a version that kept no tokenizer, and it is not at "
            f"{stored.model.tokenizer or run_dir}: replay where the run was made"
        )
    task = _task(config, record.task_id)
    with tempfile.TemporaryDirectory(prefix="agentrl-replay-") as work:
        replayer = _Replay(config, task, record, turns, tokenizer, Path(work))
        result = asyncio.run(replayer.run())
        with RunStore.open(Path(work) / "run", read_only=True) as store:
            replayed = store.turns(record.session_id)
    engine = replayer.engine
    found = compare_turns(
        turns, replayed, engine.answered, engine.unanswered, load_tokenizer(tokenizer)
    )
    recorded_version = record.extra.get("harness", {}).get("version")
    return ReplayResult(
        run_dir=str(run_dir),
        rollout_id=record.rollout_id,
        attempt=record.attempt,
        harness=config.harness.kind,
        version={"recorded": recorded_version, "replayed": result.facts.get("version")},
        outcome={"recorded": record.outcome.code.value, "replayed": result.code.value},
        turns={"recorded": len(turns), "replayed": len(replayed)},
        differences=tuple(found),
        signal=measure_signal(turns, replayed, pair_turns(replayed, engine.answered)),
        exit_code=ExitCode.FAILURE_BUDGET if found else ExitCode.DONE,
    )


class _Replay:
    """One run of the program; used once."""

    def __init__(
        self,
        config: Config,
        task: Task,
        record: RolloutRecord,
        turns: list[Turn],
        tokenizer: Path,
        work: Path,
    ) -> None:
        self.engine = RecordedEngine(turns)
        self._config = config
        self._task = task
        self._record = record
        self._tokenizer = tokenizer
        self._work = work

    async def run(self) -> HarnessResult:
        """Run the program to its end; raises AgentrlError."""
        config, deadlines = self._config, self._config.rollout.deadlines
        session_id, run = self._record.session_id, self._work / "run"
        harness = make_harness(config.harness, config.scenario)
        async with AsyncExitStack() as exits:
            backend = await asyncio.to_thread(
                make_backend, config.sandbox, self._work / "sandboxes"
            )
            exits.push_async_callback(backend.close)
            repositories = TaskRepositories(backend, cache_root() / "workspaces")
            task = await repositories.ensure(self._task)
            RunStore.create(run, {}).close()
            settings = GatewaySettings.from_config(
                config, run_dir=run, engine_url=UNUSED_ENGINE_URL, tokenizer=self._tokenizer
            )
            hooks = GatewayHooks(wrap_engine=lambda client, turn_log: self.engine)
            gateway = await exits.enter_async_context(serve_inline(settings, hooks))
            admin = GatewayAdmin(gateway["url"], gateway["admin_key"])
            exits.push_async_callback(admin.close)
            _, key = await admin.create_session(
                session_id, scenario=config.scenario.kind, max_turns=config.harness.max_turns
            )
            spec = describe_workspace(task)
            spec = replace(
                spec,
                name=session_id,
                network="gateway",
                gateway_control=Path(gateway["control"]),
                gateway_url=config.gateway.public_url or gateway["url"],
                session_key=key,
                mounts={**harness.mounts(), **spec.mounts},
            )
            async with asyncio.timeout(deadlines.boot_s):
                sandbox = await backend.create(spec)
            exits.push_async_callback(sandbox.close)
            context = HarnessContext(task.problem_statement, key, "policy", deadlines.harness_s)
            result = await harness.run(sandbox, context)
            await admin.finish(session_id, segments=False)
        return result


def _record(store: RunStore, rollout: str) -> RolloutRecord:
    attempts = store.attempts(rollout)
    if not attempts and (named := parse_session_id(rollout)) is not None:
        attempts = [each for each in store.attempts(named[0]) if each.session_id == rollout]
    if not attempts:
        raise ReplayError(
            f"{store.run_dir} has no rollout {rollout}: `agentrl status {store.run_dir}` shows "
            "which there are"
        )
    return next((record for record in attempts if record.counts), attempts[-1])


def _task(config: Config, task_id: str) -> Task:
    for task in load_tasks(config):
        if task.id == task_id:
            return task
    raise ReplayError(f"there is no task {task_id} any more: the run's dataset has changed")
