"""The replicas of one gateway: start them, watch them, start again one that was killed.

Invariant: the sessions of a replica that died are forgotten, as those of a gateway that died are;
those of the others go on. One that hangs is killed. A replica that ends by itself cannot serve (a
full disk): then nobody can, and the gateway ends with its reason.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from conf.errors import AgentrlError
from runners.concurrency.task_group import task_group
from runners.gateway.http_answers import ADMIN
from runners.gateway.replicas.channel import ReplicaChannel
from runners.gateway.replicas.forwarding import Forwarder
from runners.gateway.replicas.hang_watch import wait_until_hung
from runners.gateway.replicas.peers import describe_addresses
from runners.gateway.session_rollouts import RolloutPlace, keep_lost
from runners.gateway.settings import GatewaySettings, ReplicaSettings
from runners.processes.service import Service, ServiceError

logger = logging.getLogger(__name__)

START_S = 120.0
"""Each loads the tokenizer; on a small machine all of them do so at once."""
STOP_S = 4.0
"""For each step of ending one: before the driver, which gives the front twice 5 s, kills it."""
PAUSE, RESUME, METRICS = f"{ADMIN}pause", f"{ADMIN}resume", f"{ADMIN}metrics"
METRICS_S = 3.0
"""For a process's figures: less than the whole answer may take."""
RESTARTS = 5
RESTARTS_S = 600.0
"""More restarts than this in this time are no accidents: the gateway ends."""


@dataclass(slots=True)
class Replica:
    """One process; changed by its set, its sessions by the front's server."""

    number: int
    sessions: dict[str, str] = field(default_factory=dict)
    """Idempotency key of its creation, or "", by the id of each session that lives there."""
    creations: dict[str, str] = field(default_factory=dict)
    """The session by that key."""
    places: dict[str, RolloutPlace] = field(default_factory=dict)
    """Of the sessions that become rollouts here and are not finished."""
    service: Service | None = None
    channel: ReplicaChannel | None = None
    """None: it is not there now."""
    url: str = ""
    watch: asyncio.Task[None] | None = None
    """Kills it if it hangs."""

    def add_session(self, session_id: str, idempotency_key: str) -> None:
        """Note a session that is being created."""
        self.sessions[session_id] = idempotency_key
        if idempotency_key:
            self.creations[idempotency_key] = session_id

    def forget_session(self, session_id: str) -> None:
        """Forget a session that is deleted."""
        self.creations.pop(self.sessions.pop(session_id, ""), None)
        self.places.pop(session_id, None)


@dataclass(frozen=True, slots=True)
class ReplicaProgram:
    """The program of a replica, and what all of them are started with."""

    module: str
    settings: Mapping[str, Any]
    """Of the gateway, as JSON, with whatever else the program takes."""


class ReplicaSet:
    """The replicas of a gateway; all calls on one event loop."""

    def __init__(
        self,
        settings: GatewaySettings,
        program: ReplicaProgram,
        forwarder: Forwarder,
        *,
        admin_key: str,
        rate: int,
        control_place: Path,
    ) -> None:
        """``rate``: descriptor of the shared rate; ``control_place``: as ``ReplicaSettings``."""
        self.all = [Replica(number) for number in range(settings.replicas)]
        self.failed = asyncio.Event()
        self.failure: AgentrlError | None = None
        self._is_paused = False
        self._run_dir = settings.run_dir
        self._program = program
        self._forwarder = forwarder
        self._admin_key, self._rate, self._control_place = admin_key, rate, control_place
        self._front_url = ""
        self._turns = count()
        self._restarts: deque[float] = deque(maxlen=RESTARTS)
        self._restarting: set[asyncio.Task[None]] = set()

    async def start(self, front_url: str) -> None:
        """Start all of them at once; raises ServiceError. ``stop`` ends those that were started."""
        self._front_url = front_url
        async with task_group() as starting:
            for replica in self.all:
                starting.create_task(self._start(replica))
        await self._tell_addresses()

    async def stop(self) -> None:
        """End all of them."""
        for task in self._restarting:
            task.cancel()
        await asyncio.gather(*self._restarting, return_exceptions=True)
        await asyncio.gather(*(self._end(replica) for replica in self.all))
        for replica in self.all:  # one that was killed, now or just before
            try:
                await self._keep_lost(replica)
            except AgentrlError as error:  # a full disk is why the gateway ends
                logger.error("the sessions of gateway-%d are not kept: %s", replica.number, error)

    def live(self) -> list[Replica]:
        """Return those that are there now; raises ConnectionResetError if none is."""
        found = [replica for replica in self.all if replica.channel is not None]
        if not found:
            raise ConnectionResetError("no process of the gateway is there")
        return found

    def find(self, number: int | None) -> Replica:
        """Return the replica of that number, or any one if there is no such; raises
        ConnectionResetError if it is not there now.
        """
        if number is None or number >= len(self.all):
            live = self.live()
            return live[next(self._turns) % len(live)]
        replica = self.all[number]
        if replica.channel is None:
            raise ConnectionResetError(f"process {number} of the gateway is not there")
        return replica

    async def call(
        self, replica: Replica, path: str, body: bytes, **headers: str
    ) -> tuple[int, bytes]:
        """Post JSON to a replica's admin API; return the status and the body of its answer. Raises
        ConnectionError if it is not there.
        """
        if not replica.url:
            raise ConnectionResetError(f"process {replica.number} of the gateway is not there")
        headers |= {"authorization": f"Bearer {self._admin_key}"}
        headers |= {"content-type": "application/json"}
        return await self._forwarder.call("POST", replica.url + path, body, headers)

    async def read_metrics(self) -> dict[str, dict[str, Any]]:
        """Return what each process that is there counts, by its number."""
        live = [replica for replica in self.all if replica.url]
        headers = {"authorization": f"Bearer {self._admin_key}"}

        async def read(url: str) -> tuple[int, bytes]:
            async with asyncio.timeout(METRICS_S):  # one that hangs hides none of the others
                return await self._forwarder.call("GET", url + METRICS, b"", headers)

        answers = await asyncio.gather(
            *(read(replica.url) for replica in live), return_exceptions=True
        )
        return {
            str(replica.number): orjson.loads(answer[1])
            for replica, answer in zip(live, answers, strict=True)
            if not isinstance(answer, BaseException) and answer[0] == HTTPStatus.OK
        }

    async def pause(self, body: bytes) -> list[tuple[int, bytes]]:
        """Pause all that are there, and each that is started from now on; return their answers."""
        self._is_paused = True
        return await self._call_all(PAUSE, body)

    async def resume(self) -> list[tuple[int, bytes]]:
        """Resume all that are there; return their answers."""
        self._is_paused = False
        return await self._call_all(RESUME, b"{}")

    async def _call_all(self, path: str, body: bytes) -> list[tuple[int, bytes]]:
        answers = await asyncio.gather(
            *(self.call(replica, path, body) for replica in self.live()), return_exceptions=True
        )
        for answer in answers:
            # one that is gone has no generation at the engine any more
            if isinstance(answer, BaseException) and not isinstance(answer, ConnectionError):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _start(self, replica: Replica) -> None:
        name = f"gateway-{replica.number}"
        channel = ReplicaChannel()
        place = ReplicaSettings(
            number=replica.number,
            of=len(self.all),
            admin_key=self._admin_key,
            channel=channel.theirs.fileno(),
            rate=self._rate,
            control_place=self._control_place,
        )
        limits = self._program.settings["limits"]
        workers = -(-limits["text_workers"] // len(self.all))
        try:
            service = await Service.start(
                name,
                self._program.module,
                {
                    **self._program.settings,
                    "host": "127.0.0.1",
                    "port": 0,
                    "replicas": 1,
                    "replica": place.model_dump(mode="json"),
                    # their sum is that of one gateway, and at least one each
                    "limits": {**limits, "text_workers": workers},
                },
                log=self._run_dir / "logs" / f"{name}.log",
                deadline_s=START_S,
                descriptors=(place.channel, place.rate),
            )
        except BaseException:
            channel.close()
            raise
        channel.theirs.close()  # the replica's alone, so that its death is seen here
        replica.service, replica.url = service, service.info["url"]
        service.watch(lambda error: self._on_exit(replica, error))
        if self._is_paused:
            with suppress(ConnectionError):
                await self.call(replica, PAUSE, b'{"deadline_s": 0}')
                if not self._is_paused:
                    await self.call(replica, RESUME, b"{}")
        replica.channel = channel
        replica.watch = asyncio.create_task(self._kill_if_hung(replica, service))

    async def _kill_if_hung(self, replica: Replica, service: Service) -> None:
        health = f"{replica.url}/health"
        await wait_until_hung(lambda: self._forwarder.call("GET", health, b"", {}))
        logger.error("%s lives and answers nothing: it is killed", service.name)
        service.kill()

    def _on_exit(self, replica: Replica, error: ServiceError) -> None:
        assert replica.service is not None
        code = replica.service.exit_code
        self._drop(replica)
        now = time.monotonic()
        often = len(self._restarts) == RESTARTS and now - self._restarts[0] < RESTARTS_S
        if code is None or code >= 0 or often:  # it said why it cannot go on, or nothing helps
            self._fail(error)
            return
        logger.error("%s; its %d sessions are lost", error, len(replica.sessions))
        self._restarts.append(now)
        task = asyncio.create_task(self._restart(replica), name=f"restart-{replica.number}")
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)

    async def _restart(self, replica: Replica) -> None:
        replica.sessions.clear()
        replica.creations.clear()
        try:
            await self._end(replica)
            await self._keep_lost(replica)
            await self._start(replica)
            await self._tell_addresses()
        except AgentrlError as error:
            self._fail(error)
        except OSError as error:  # out of descriptors
            self._fail(ServiceError(f"gateway-{replica.number} cannot be started: {error}"))

    async def _keep_lost(self, replica: Replica) -> None:
        """Store the sessions that a replica has not ended itself; raises StoreError."""
        if replica.places:
            await asyncio.to_thread(keep_lost, self._run_dir, dict(replica.places))
            replica.places.clear()

    def _fail(self, error: AgentrlError) -> None:
        self.failure = self.failure or error
        self.failed.set()

    def _drop(self, replica: Replica) -> None:
        """Close the way to a replica that is gone, or is about to be."""
        if replica.channel is not None:
            replica.channel.close()
        if replica.watch is not None:
            replica.watch.cancel()
        replica.channel, replica.url, replica.watch = None, "", None

    async def _end(self, replica: Replica) -> None:
        service, replica.service = replica.service, None
        if service is not None:
            await service.stop(STOP_S)
            # one that was killed has left its control socket
            shutil.rmtree(Path(service.info["control"]).parent, ignore_errors=True)
        self._drop(replica)

    async def _tell_addresses(self) -> None:
        addresses = describe_addresses(self._front_url, [each.url or None for each in self.all])
        channels = [each.channel for each in self.all if each.channel is not None]
        # at once: one that does not read keeps it from no other; OSError: it has died meanwhile
        told = await asyncio.gather(
            *(channel.tell(addresses) for channel in channels), return_exceptions=True
        )
        for error in told:
            if error is not None and not isinstance(error, OSError):
                raise error
