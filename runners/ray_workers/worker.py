"""What runs on a node of a cluster: attempts in this node's sandboxes, by the same ``Attempt``.

Whatever must not be lost is kept by the driver: a question waits here until somebody takes it to
him and brings his answer. Nothing here knows Ray; every call of a worker is made by whoever does.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import pickle
import platform
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from conf.cache import cache_root
from conf.schema import Config
from runners.concurrency.limits import TokenBucket
from runners.diagnostics.attempt_progress import AttemptWatch
from runners.faults.wiring import worker_faults
from runners.gateway.client import GatewayAdmin
from runners.harnesses.registry import make_harness
from runners.processes.ledger import ResourceKind
from runners.processes.process_names import PREFIX, is_stale, make_unique_name
from runners.ray_workers.relay import Relay
from runners.ray_workers.remote_errors import ExecutorError, Trouble, raised, trouble_of
from runners.ray_workers.repository_cache import Parcels
from runners.rollouts.attempt import Attempt
from runners.rollouts.context import AttemptContext, AttemptResult
from runners.rollouts.spec import RolloutSpec
from runners.sandboxes.backends import make_backend
from runners.sandboxes.wrappers import RegisteredBackend
from runners.tasks.grading import make_grader
from runners.tasks.task_repositories import TaskRepositories
from runners.trajectory import ids
from runners.trajectory.record import RolloutRecord
from runners.trajectory.turn_totals import TurnTotals

HEARTBEAT_S = 1.0
"""A worker whose questions are asked for answers at least so often, if only to say that it lives.
"""
ANSWER_S = 120.0
"""For the driver to keep something, or to send a repository."""
FAREWELL_S = 3.0
"""What attempts that are ended with their worker get to leave a record."""
PACKAGES = ("conf", "runners")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is told; it stays in memory, for the gateway's key is in it."""

    node: str
    config: Config
    gateway_url: str
    """As this node reaches it."""
    admin_key: str = field(repr=False)
    sandbox_gateway_url: str
    """As sandboxes elsewhere reach it."""
    mark: str | None
    """What marks the run's sandboxes at a provider."""


@dataclass(frozen=True, slots=True)
class Order:
    """An attempt to run."""

    spec: RolloutSpec
    number: int
    queued_s: float


@dataclass(frozen=True, slots=True)
class Question:
    """What the driver is asked."""

    name: str
    arguments: tuple[Any, ...]


@cache
def identity() -> dict[str, str]:
    """Return what must be the same on every node: Python, and agentrl's source as it lies there."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "agentrl": f"sources {digest.hexdigest()[:12]}"}


def is_loopback(host: str) -> bool:
    """Whether only its own machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Worker:
    """The attempts of one node; used on one event loop."""

    def __init__(self) -> None:
        self._exits = AsyncExitStack()
        self._settings: WorkerSettings
        self._tools: AttemptContext
        self._relay: Relay
        self._watch = AttemptWatch()
        self._attempts: dict[str, asyncio.Task[AttemptResult]] = {}
        self._called_off: set[str] = set()
        """Attempts that were cancelled before they came: calls may overtake each other."""
        self._numbers = itertools.count()
        self._unasked: list[tuple[int, bytes]] = []
        self._asked = asyncio.Event()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._alone = False
        """Nobody answers any more."""

    async def hello(self) -> dict[str, str]:
        """Return who it is."""
        return identity()

    async def prepare(self, settings: bytes) -> bytes:
        """Get ready to run attempts; returns what sandboxes promise here, or why there are none."""
        self._settings = pickle.loads(settings)
        try:
            return pickle.dumps(await self._prepared(self._settings))
        except Exception as error:  # the top of a worker
            return pickle.dumps(trouble_of(error))

    async def run(self, order: bytes, waited_s: float) -> bytes:
        """Run an attempt to its end; returns ``Finished``, or what it raised."""
        told: Order = pickle.loads(order)
        session_id = ids.session_id(told.spec.rollout_id, told.number)
        if session_id in self._called_off:
            return pickle.dumps(trouble_of(asyncio.CancelledError("cancelled before it began")))
        work = asyncio.create_task(self._attempt(told, waited_s), name=session_id)
        self._attempts[session_id] = work
        try:
            return pickle.dumps(await work)
        except (Exception, asyncio.CancelledError) as error:
            return pickle.dumps(trouble_of(error))
        finally:
            del self._attempts[session_id]

    async def cancel(self, session_id: str) -> None:
        """End an attempt; returns when what it had made is gone."""
        work = self._attempts.get(session_id)
        if work is None:
            self._called_off.add(session_id)
            return
        work.cancel()
        await asyncio.wait([work])

    async def questions(self) -> tuple[list[tuple[int, bytes]], dict[str, str]]:
        """Return the questions since the last call, and the stage that each attempt is in."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_S):
                await self._asked.wait()
        self._asked.clear()
        batch, self._unasked = self._unasked, []
        return batch, {flight.session_id: flight.stage for flight in self._watch.in_flight()}

    async def answer(self, number: int, answer: bytes) -> None:
        """Bring the answer to a question."""
        waiting = self._answers.get(number)
        if waiting is None or waiting.done():  # whoever asked has left
            return
        found = pickle.loads(answer)
        if isinstance(found, Trouble):
            waiting.set_exception(raised(found))
        else:
            waiting.set_result(found)

    async def close(self) -> None:
        """End every attempt and remove everything that was made on this node; a driver who does
        not answer is not waited for.
        """
        attempts = list(self._attempts.values())
        for work in attempts:
            work.cancel()
        if attempts:
            await asyncio.wait(attempts, timeout=FAREWELL_S)
        self._alone = True
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(_gone())
        if attempts:
            await asyncio.wait(attempts)
        await self._exits.aclose()

    async def _prepared(self, settings: WorkerSettings) -> dict[str, str]:
        config, root = settings.config, _own_directory()
        self._exits.callback(shutil.rmtree, root, ignore_errors=True)
        sandboxes = root / "sandboxes"
        if settings.mark is not None:
            sandboxes.mkdir()
            (sandboxes / "mark").write_text(settings.mark)
        backend = await asyncio.to_thread(make_backend, config.sandbox, sandboxes)
        self._exits.push_async_callback(backend.close)
        gateway = GatewayAdmin(settings.gateway_url, settings.admin_key)
        self._exits.push_async_callback(gateway.close)
        if not await gateway.healthy():
            raise ExecutorError(
                f"the gateway is not reached at {settings.gateway_url}: see that no firewall is "
                "between, or set gateway.host to an address that this node reaches"
            )
        faults = self._exits.enter_context(
            worker_faults(config.faults, _Events(self._tell), gateway)
        )
        registered = faults.wrap_backend(RegisteredBackend(backend, self))
        cache = cache_root() / "workspaces"
        repositories = TaskRepositories(registered, cache)
        parcels = Parcels(cache, partial(self._ask, "repository"), repositories.ensure)
        self._relay = Relay(settings.gateway_url, root)
        self._tools = faults.wrap_context(
            AttemptContext(
                backend=registered,
                harness=await asyncio.to_thread(make_harness, config.harness, config.scenario),
                grader=make_grader(registered, config.task, parcels.ready, root),
                gateway=gateway,
                gateway_url=settings.sandbox_gateway_url,
                gateway_control=root,  # each attempt has its own
                deadlines=config.rollout.deadlines,
                reward=config.reward,
                scenario=config.scenario.kind,
                sandbox_starts=TokenBucket(None),  # the driver counts those of all nodes
                watch=self._watch,
                max_turns=config.harness.max_turns,
                ready=parcels.ready,
            )
        )
        return backend.guarantees()

    async def _attempt(self, order: Order, waited_s: float) -> AttemptResult:
        async with self._relay.control() as control:
            finished = await Attempt(
                replace(self._tools, gateway_control=control),
                self,
                order.spec,
                order.number,
                queued_s=order.queued_s + waited_s,
            ).run()
        if self._telling:
            await asyncio.wait(set(self._telling))
        return replace(finished, record=self._placed(finished.record))

    def _placed(self, record: RolloutRecord) -> RolloutRecord:
        return replace(record, extra={**record.extra, "node": self._settings.node})

    # The keeper of its attempts: the driver does it.

    async def register(self, kind: ResourceKind, name: str) -> None:
        """Register a thing that is about to be made; one that nobody waited for leaves again."""
        try:
            await self._ask("enter", kind, name)
        except (asyncio.CancelledError, TimeoutError):  # it may be on its way; this follows it
            self._later(self.unregister(kind, name), f"leave-{name}")
            raise

    async def unregister(self, kind: ResourceKind, name: str) -> None:
        """Take a thing off that is gone."""
        await self._ask("leave", kind, name)

    async def put_rollout(self, record: RolloutRecord) -> None:
        """Write one attempt, new or again."""
        await self._ask("put_rollout", self._placed(record))

    async def event(self, kind: str, data: dict[str, Any]) -> None:
        """Record a notable thing."""
        await self._ask("event", kind, data)

    async def turn_totals(self, session_id: str) -> TurnTotals:
        """Return the sums over a session's turns."""
        found: TurnTotals = await self._ask("turn_totals", session_id)
        return found

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        """Have an event recorded before the attempt ends, without waiting."""
        self._later(self.event(kind, data), f"event-{kind}")

    def _later(self, telling: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(telling, name=name)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _ask(self, name: str, *arguments: Any) -> Any:
        if self._alone:
            raise _gone()
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._unasked.append((number, pickle.dumps(Question(name, arguments))))
            self._asked.set()
            async with asyncio.timeout(ANSWER_S):
                return await answer
        finally:
            del self._answers[number]


def _gone() -> ExecutorError:
    return ExecutorError("the driver is gone")


class _Events:
    """Where the faults that are injected here are kept."""

    def __init__(self, tell: Callable[[str, dict[str, Any]], None]) -> None:
        self._tell = tell

    def event(self, kind: str, data: dict[str, Any]) -> None:
        """Record a notable thing."""
        self._tell(kind, data)


def _own_directory() -> Path:
    """Make a directory of this process; those of killed workers are removed."""
    parent = Path(tempfile.gettempdir())
    for other in parent.glob(f"{PREFIX}*"):
        if is_stale(other.name):
            shutil.rmtree(other, ignore_errors=True)
    root = parent / make_unique_name()
    root.mkdir(mode=0o700)
    return root
