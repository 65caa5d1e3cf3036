"""Several gateway processes that share the sessions of one run, each whole and at its own port.

A session lives in one of them: whoever opens it (``GatewayAdmin``) chooses the process, and gives
the program that process's URL. So nothing stands in front of them, and nothing is forwarded.

Invariant: the sessions of a process that died are lost, as with a gateway that died, and their
stored turns stay; those of the others go on. It is started again at its port. One that hangs is
killed. A process that ends by itself cannot serve (a full disk): then nobody can, and all end.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from conf.errors import AgentrlError
from runners.gateway.client import GatewayAdmin
from runners.gateway.sessions.session_rollouts import keep_lost
from runners.gateway.settings import GatewaySettings, ReplicaSettings
from runners.system.concurrency import task_group
from runners.system.processes import Service, ServiceError, ServiceStarter

START_S = 120.0
"""Each loads the tokenizer; on a small machine all of them do so at once."""
EVERY_S = 2.0
"""Between two questions whether a process answers."""
ANSWER_S = 8.0
"""Of a question. A process answers in milliseconds, since no request holds its loop for longer."""
QUESTIONS = 3
"""Unanswered in a row before a process counts as hung. Questions count, not time: a machine that
was suspended, whose clock jumps, costs one question and no process. Together with the pauses 30 s:
a call of the admin API has 60 s, so one that waits for the process that hangs (a pause before new
weights) ends well.
"""
RESTARTS = 5
RESTARTS_S = 600.0
"""More restarts than this in this time are no accidents: the gateway ends."""


@dataclass(slots=True)
class Replica:
    """One process; changed by its set alone."""

    number: int
    port: int = 0
    """At which it is started again; 0: it has not been started yet."""
    service: Service | None = None
    watch: asyncio.Task[None] | None = None
    """Kills it if it hangs."""


def share_settings(settings: GatewaySettings, place: ReplicaSettings) -> dict[str, Any]:
    """Return what is one process's own, as JSON: the sum of all is what a single gateway has."""
    limits, rate, metrics = settings.limits, settings.engine_calls_per_s, settings.metrics_port
    return {
        "port": settings.port and settings.port + place.number,
        "metrics_port": metrics and metrics + place.number,
        "engine_calls_per_s": rate and rate / place.of,
        "limits": {
            **limits.model_dump(mode="json"),
            "text_workers": -(-limits.text_workers // place.of),
        },
        "replica": place.model_dump(mode="json"),
    }


class ReplicaSet:
    """The processes of one gateway; all calls on one event loop."""

    def __init__(
        self,
        settings: GatewaySettings,
        count: int,
        program: tuple[str, Mapping[str, Any]],
        starter: ServiceStarter,
        *,
        report: Callable[[str], None],
    ) -> None:
        """``program``: the module of a process, and the settings as JSON with whatever else it
        takes. ``starter``: its ``on_exit`` is called once, when they cannot go on. ``report`` gets
        a line for each that is started again.
        """
        self._all = [Replica(number) for number in range(count)]
        self._settings, self._program, self._starter = settings, program, starter
        self._report = report
        self._admin_key = secrets.token_urlsafe(32)
        self._restarts: deque[float] = deque(maxlen=RESTARTS)
        self._restarting: set[asyncio.Task[None]] = set()
        self._over = False
        """They are being ended, or cannot go on."""
        self._admin: GatewayAdmin | None = None

    async def start(self) -> GatewayAdmin:
        """Start all of them at once; return a client, which is closed by ``stop``.

        Raises ServiceError; ``stop`` ends those that were started.
        """
        async with task_group() as starting:
            started = [starting.create_task(self._start(replica)) for replica in self._all]
        admin = GatewayAdmin([each.result() for each in started], self._admin_key)
        self._admin = admin
        for url in admin.urls:  # each began paused, like one that is started again
            await admin.open_replica(url)
        return admin

    async def stop(self) -> None:
        """End all of them."""
        self._over = True  # from now on an exit is no accident: nothing is started behind our back
        for task in self._restarting:
            task.cancel()
        await asyncio.gather(*self._restarting, return_exceptions=True)
        await asyncio.gather(*(self._end(replica) for replica in self._all))
        if self._admin is not None:
            await self._admin.close()
        for replica in self._all:  # one may have been killed just now, or before it was restarted
            try:
                await self._keep_lost(replica)
            except AgentrlError as error:  # a full disk is why they end
                self._report(f"the sessions of gateway-{replica.number} are not kept: {error}")

    async def _start(self, replica: Replica) -> str:
        """Start a process, which begins paused, and watch it; return its URL."""
        name, (module, sent) = f"gateway-{replica.number}", self._program
        place = ReplicaSettings(number=replica.number, of=len(self._all), admin_key=self._admin_key)
        share = share_settings(self._settings, place)
        # Again at the port of its first start: sessions were given its URL, and clients that retry
        # there are to hear that their keys are worthless, not to wait for nobody.
        replica.service = service = await Service.start(
            name,
            module,
            {**sent, **share, "port": replica.port or share["port"]},
            log=self._starter.log(name),
            deadline_s=START_S,
            ledger=self._starter.ledger,
        )
        url: str = service.info["url"]
        replica.port = urlsplit(url).port or 0
        service.watch(lambda error: self._on_exit(replica, error))
        replica.watch = asyncio.create_task(self._kill_if_hung(service, url), name=f"ask-{name}")
        return url

    async def _kill_if_hung(self, service: Service, url: str) -> None:
        """Kill a process that lives and answers nothing (stopped, stuck in a system call)."""
        asking = GatewayAdmin(url, "", deadline_s=ANSWER_S)
        try:
            unanswered = 0
            while unanswered < QUESTIONS:
                await asyncio.sleep(EVERY_S)
                unanswered = 0 if await asking.healthy() else unanswered + 1
        finally:
            await asking.close()
        self._report(f"{service.name} lives and answers nothing: it is killed")
        service.kill()

    def _on_exit(self, replica: Replica, error: ServiceError) -> None:
        if self._over:
            return
        assert replica.service is not None
        code = replica.service.exit_code  # negative: a signal, so the process had no say in it
        now = time.monotonic()
        often = len(self._restarts) == RESTARTS and now - self._restarts[0] < RESTARTS_S
        if code is None or code >= 0 or often:  # it said why it cannot go on, or nothing helps
            self._fail(error)
            return
        self._report(f"{error}; its sessions are lost, and it is started again")
        self._restarts.append(now)
        task = asyncio.create_task(self._restart(replica), name=f"restart-{replica.number}")
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)

    async def _restart(self, replica: Replica) -> None:
        try:
            await self._end(replica)
            await self._keep_lost(replica)
            url = await self._start(replica)
            if self._admin is not None:  # else ``start`` opens it with the others
                await self._admin.open_replica(url)
        except AgentrlError as error:
            self._fail(error)
        except OSError as error:  # out of descriptors
            self._fail(ServiceError(f"gateway-{replica.number} cannot be started: {error}"))

    async def _keep_lost(self, replica: Replica) -> None:
        """Store the sessions that a process has not ended itself; raises StoreError."""
        if self._settings.keep_rollouts:  # a campaign's driver keeps its own
            await asyncio.to_thread(keep_lost, self._settings.run_dir, replica.number)

    def _fail(self, error: AgentrlError) -> None:
        if not self._over:
            self._over = True
            self._starter.on_exit(
                error if isinstance(error, ServiceError) else ServiceError(str(error))
            )

    async def _end(self, replica: Replica) -> None:
        watch, replica.watch = replica.watch, None
        if watch is not None:
            watch.cancel()
        service, replica.service = replica.service, None
        if service is not None:
            await service.stop()
