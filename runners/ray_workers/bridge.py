"""The workers of a run on the nodes of a Ray cluster: one on each, attempts brought to them, and
their questions to the driver.

Invariant: an attempt is on one worker, and ends when that is lost. Ray lets no worker outlive the
process of this bridge (``__main__``).
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from conf.errors import AgentrlError, ExitCode
from runners.ray_workers.remote_errors import ExecutorError, NodeLost, Trouble
from runners.ray_workers.rpc import Line
from runners.ray_workers.worker import Worker, WorkerSettings, identity, is_loopback

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between two looks at which nodes there are."""
SILENCE_S = 60.0
"""A worker says every second that it lives; one whose event loop stands still for so long is
lost."""
PREPARE_S = 300.0
"""From a worker's start to its readiness: a Python starts, sandboxes are tried."""
CLOSE_S = 20.0
"""What a worker gets to remove what it has made."""
STAFFING = "staff-"
"""Begins the names of tasks that bring workers to nodes."""
AGAIN_S = 30.0
"""Between two tries to get a worker onto a node that could not be had."""
SHOWN = 300
"""Characters of an error of Ray."""
SPARE_CALLS = 16
"""Of a worker at once, besides attempts and their cancellations: questions and answers."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node of the cluster."""

    node_id: str
    name: str
    address: str


@dataclass(eq=False, slots=True)
class Post:
    """A worker on a node; mutated by the bridge."""

    place: Place
    actor: Any
    lost: asyncio.Future[str]
    """Why it is; set once."""
    in_flight: set[str] = field(default_factory=set)
    ready: bool = False


class Bridge:
    """The workers of one run."""

    def __init__(
        self, address: str, *, rollouts_per_node: int, driver_node: bool, patience_s: float
    ) -> None:
        """``address`` is this machine's in the cluster."""
        self._rollouts_per_node = rollouts_per_node
        self._driver_node = driver_node
        self._patience_s = patience_s
        self._posts: dict[str, Post] = {}
        """By node id; the lost ones are gone from here."""
        self._refused: set[str] = set()
        self._trouble = "nothing"
        """Why the last node that was given up was."""
        self._not_before: dict[str, float] = {}
        """When a node is tried again (``time.monotonic``)."""
        self._changed = asyncio.Condition()
        self._running: dict[str, asyncio.Task[bytes]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._address = address
        self._settings: WorkerSettings
        self._line: Line

    def attach(self, line: Line) -> None:
        """Take the line to the driver."""
        self._line = line

    async def answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Answer the driver."""
        match name:
            case "start":
                return await self._start(*arguments)
            case "run":
                return await self._run(*arguments)
            case "cancel":
                return await self._cancel(*arguments)
            case "close":
                return await self.close()
        raise ValueError(f"the bridge knows no {name}")

    async def close(self) -> list[str]:
        """End all workers, and have them remove what they made; returns the nodes that did."""
        for task in self._tasks:
            if task.get_name().startswith(STAFFING):
                task.cancel()
        posts, self._posts = list(self._posts.values()), {}
        clean = await asyncio.gather(*(self._dismiss(post) for post in posts))  # they may ask still
        for task in self._tasks:
            task.cancel()
        return [post.place.name for post, done in zip(posts, clean, strict=True) if done]

    # Nodes and their workers.

    async def _start(self, settings: WorkerSettings) -> dict[str, dict[str, str]]:
        """Get a worker ready on every node there is; returns what their sandboxes promise.

        Raises ExecutorError with the reason of every node that cannot work. One that is just
        leaving the cluster is no reason, as long as there is another.
        """
        self._settings = settings
        places = await self._places()
        if not places:
            raise ExecutorError(
                "the Ray cluster has no node that may take rollouts: start another with "
                "`ray start --address=…`, or set executor.driver_node=true",
                ExitCode.PREFLIGHT,
            )
        found = await asyncio.gather(*map(self._staffed, places), return_exceptions=True)
        faults = [each for each in found if isinstance(each, BaseException)]
        for each in faults:
            if not isinstance(each, AgentrlError):
                raise each
        if len(faults) == len(places) or not all(isinstance(each, NodeLost) for each in faults):
            raise ExecutorError("\n".join(map(str, faults)), ExitCode.PREFLIGHT)
        self._spawn(self._watch_nodes(), f"{STAFFING}all")
        return {
            place.name: each
            for place, each in zip(places, found, strict=True)
            if not isinstance(each, BaseException)
        }

    async def _places(self) -> Sequence[Place]:
        mine = ray.get_runtime_context().get_node_id()
        nodes = await asyncio.to_thread(ray.nodes)
        return [
            Place(
                node["NodeID"],
                f"{node['NodeManagerHostname']}/{node['NodeID'][:8]}",
                node["NodeManagerAddress"],
            )
            for node in nodes
            if node["Alive"] and (self._driver_node or node["NodeID"] != mine)
        ]

    async def _watch_nodes(self) -> None:
        """Staff nodes that join, and those whose worker was lost; give up those that leave."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                places = await self._places()
            except RayError as error:  # the head does not answer; Ray ends this process in the end
                _log.warning("which nodes there are is not known: %s", told(error))
                continue
            alive = {place.node_id for place in places}
            for post in list(self._posts.values()):
                if post.place.node_id not in alive:
                    await self._lose(post, "the node has left the cluster")
            for place in places:
                wanted = place.node_id not in self._posts and place.node_id not in self._refused
                if wanted and time.monotonic() >= self._not_before.get(place.node_id, 0.0):
                    self._spawn(self._staffed_later(place), f"{STAFFING}{place.name}")

    async def _staffed_later(self, place: Place) -> None:
        try:
            facts = await self._staffed(place)
        except NodeLost as error:
            _log.warning("%s", error)
            self._trouble = str(error)
            self._not_before[place.node_id] = time.monotonic() + AGAIN_S
        except AgentrlError as error:
            self._refused.add(place.node_id)
            self._trouble = str(error)
            await self._line.ask("refused", place.name, str(error))
        else:
            await self._line.ask("joined", place.name, facts)

    async def _staffed(self, place: Place) -> dict[str, str]:
        """Start a worker and get it ready; returns what its sandboxes promise.

        Raises ExecutorError if it cannot work there, NodeLost if it is gone before it says so.
        """
        actor = self._made(place)
        post = Post(place, actor, asyncio.get_running_loop().create_future())
        self._posts[place.node_id] = post
        try:
            async with asyncio.timeout(PREPARE_S):
                self._refuse_unreached(place)
                _refuse_different(place, await actor.hello.remote())
                settings = replace(self._settings, node=place.name)
                found = pickle.loads(await actor.prepare.remote(pickle.dumps(settings)))
            if isinstance(found, Trouble):
                raise ExecutorError(f"node {place.name}: {found.text}", ExitCode.PREFLIGHT)
        except (RayError, TimeoutError, ExecutorError) as error:
            if self._posts.get(place.node_id) is post:  # else its node has left meanwhile
                del self._posts[place.node_id]
            self._kill(post)
            if isinstance(error, ExecutorError):
                raise
            if "ModuleNotFoundError" in str(error):
                raise ExecutorError(
                    f"node {place.name} lacks agentrl, or something that it needs: "
                    f"{told(error)}; install the same on every node",
                    ExitCode.PREFLIGHT,
                ) from error
            raise NodeLost(f"node {place.name}: {_said(error, PREPARE_S)}", place.name) from error
        post.ready = True
        self._spawn(self._listen(post), f"listen-{place.name}")
        await self._tell_waiting()
        return dict(found)

    def _refuse_unreached(self, place: Place) -> None:
        host = urlsplit(self._settings.gateway_url).hostname or ""
        if place.address != self._address and is_loopback(host):
            raise ExecutorError(
                f"node {place.name} at {place.address} does not reach gateway.host={host}: set "
                f"gateway.host={self._address} (or 0.0.0.0)",
                ExitCode.PREFLIGHT,
            )

    def _made(self, place: Place) -> Any:
        return (
            ray.remote(Worker)
            .options(
                num_cpus=0,
                max_restarts=0,
                max_concurrency=2 * self._rollouts_per_node + SPARE_CALLS,
                scheduling_strategy=NodeAffinitySchedulingStrategy(place.node_id, soft=False),
            )
            .remote()
        )

    async def _lose(self, post: Post, why: str) -> None:
        """Give a worker up: what it ran is lost."""
        if self._posts.get(post.place.node_id) is not post:
            return
        del self._posts[post.place.node_id]
        self._kill(post)
        name = post.place.name
        _log.warning("node %s is lost: %s", name, why)
        self._trouble = f"node {name}: {why}"
        try:
            await self._line.ask("lost", name, why)
        finally:
            post.lost.set_result(why)
            await self._tell_waiting()

    def _kill(self, post: Post) -> None:
        with suppress(RayError):
            ray.kill(post.actor, no_restart=True)

    async def _dismiss(self, post: Post) -> bool:
        """End a worker; returns whether it has removed everything."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await post.actor.close.remote()
        except (RayError, TimeoutError) as error:
            _log.warning("node %s: %s", post.place.name, _said(error, CLOSE_S))
            return False
        finally:
            self._kill(post)
        return True

    # Questions of workers.

    async def _listen(self, post: Post) -> None:
        """Take a worker's questions to the driver, for as long as it lives."""
        stages: dict[str, str] = {}
        while not post.lost.done():
            try:
                async with asyncio.timeout(SILENCE_S):
                    questions, now = await post.actor.questions.remote()
            except (RayError, TimeoutError) as error:
                await self._lose(post, _said(error, SILENCE_S))
                return
            for number, question in questions:
                self._spawn(self._ask(post, number, question), f"question-{number}")
            if now != stages:
                stages = now
                self._spawn(self._line.ask("stages", post.place.name, stages), "stages")

    async def _ask(self, post: Post, number: int, question: bytes) -> None:
        answer = await self._line.ask("question", post.place.name, question)
        with suppress(RayError):  # a worker that is gone needs none
            await post.actor.answer.remote(number, answer)

    # Attempts.

    async def _run(self, session_id: str, order: bytes) -> bytes:
        """Run an attempt on the node with the most room; raises NodeLost and ExecutorError."""
        task = asyncio.ensure_future(self._brought(session_id, order))
        self._running[session_id] = task
        try:
            return await task
        finally:
            del self._running[session_id]

    async def _brought(self, session_id: str, order: bytes) -> bytes:
        asked = time.monotonic()
        post = await self._room()
        post.in_flight.add(session_id)
        try:
            call = asyncio.ensure_future(_result(post.actor, order, time.monotonic() - asked))
            ends: list[asyncio.Future[Any]] = [call, post.lost]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not post.lost.done():
                try:
                    return call.result()
                except RayError as error:
                    await self._lose(post, _said(error, SILENCE_S))
            raise NodeLost(f"node {post.place.name}: {await post.lost}", post.place.name)
        finally:
            post.in_flight.discard(session_id)
            await self._tell_waiting()

    async def _room(self) -> Post:
        """Return a worker with room, when there is one; raises ExecutorError if for too long there
        is none at all.
        """
        since: float | None = None
        async with self._changed:
            while True:
                ready = [post for post in self._posts.values() if post.ready]
                free = [post for post in ready if len(post.in_flight) < self._rollouts_per_node]
                if free:
                    return min(free, key=lambda post: len(post.in_flight))
                since = None if ready else (since or time.monotonic())
                left = self._patience_s - (time.monotonic() - since) if since else None
                if left is not None and left <= 0:
                    raise ExecutorError(
                        f"no node of the Ray cluster could take rollouts for {self._patience_s:g} "
                        f"s (executor.patience_s), and of the last it was said: {self._trouble}; "
                        "start some, then continue with --resume"
                    )
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._changed.wait()

    async def _cancel(self, session_id: str) -> None:
        """End an attempt; returns when its worker has removed what it made."""
        for post in self._posts.values():
            if session_id in post.in_flight:
                with suppress(RayError):
                    await post.actor.cancel.remote(session_id)
                return
        if session_id in self._running:  # it waits for room
            self._running[session_id].cancel()

    async def _tell_waiting(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _spawn(self, work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _result(actor: Any, order: bytes, waited_s: float) -> bytes:
    found: bytes = await actor.run.remote(order, waited_s)
    return found


def _refuse_different(place: Place, theirs: dict[str, str]) -> None:
    for what, here in identity().items():
        if theirs[what] != here:
            raise ExecutorError(
                f"node {place.name} has another {what} ({theirs[what]}) than the driver ({here}): "
                "install the same on every node",
                ExitCode.PREFLIGHT,
            )


def _said(error: BaseException, deadline_s: float) -> str:
    """Return why a worker is given up; Ray writes pages."""
    name = type(error).__name__
    if isinstance(error, TimeoutError):
        return f"its worker did not answer for {deadline_s:g} s"
    if isinstance(error, ActorDiedError | ActorUnavailableError):
        return f"its worker is gone ({name})"
    return f"{name}: {told(error)}"


def told(error: BaseException) -> str:
    """Return what can be shown of what Ray says: the end is the cause."""
    text = " ".join(str(error).split())
    return text if len(text) <= SHOWN else f"…{text[-SHOWN:]}"
