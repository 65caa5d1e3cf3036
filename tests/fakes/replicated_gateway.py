"""A gateway of several processes, as a driver starts it; and the same within one event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import psutil

from runners.gateway.client import GatewayAdmin
from runners.gateway.replicas.replica_set import ReplicaSet
from runners.gateway.service import serve_inline
from runners.gateway.settings import GatewaySettings, ReplicaSettings
from runners.system.processes.service import ServiceError, ServiceStarter


@dataclass
class Replicated:
    """The processes and their client."""

    admin: GatewayAdmin
    said: list[str] = field(default_factory=list)
    """Lines about what was started again."""
    ended: list[ServiceError] = field(default_factory=list)
    """Why they cannot go on."""

    def processes(self) -> list[psutil.Process]:
        """Return the processes, by number."""
        ports = [int(url.rpartition(":")[2]) for url in self.admin.urls]
        listening = {
            connection.laddr.port: process
            for process in psutil.Process().children()
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        return [listening[port] for port in ports]


@asynccontextmanager
async def replicated_gateway(
    settings: GatewaySettings, count: int = 2, module: str = "runners.gateway"
) -> AsyncIterator[Replicated]:
    """Start the processes for the run of the settings, and end them."""
    said: list[str] = []
    ended: list[ServiceError] = []
    async with AsyncExitStack() as exits:
        starter = ServiceStarter(settings.run_dir, exits, ended.append)
        program = module, settings.model_dump(mode="json")
        replicas = ReplicaSet(settings, count, program, starter, report=said.append)
        exits.push_async_callback(replicas.stop)
        yield Replicated(await replicas.start(), said, ended)


@asynccontextmanager
async def inline_replicas(settings: GatewaySettings, count: int = 2) -> AsyncIterator[GatewayAdmin]:
    """Serve as so many processes would, in this event loop; yield their client."""
    async with AsyncExitStack() as exits:
        urls = []
        for number in range(count):
            place = ReplicaSettings(number=number, of=count, admin_key="of-all")
            own = settings.model_copy(update={"replica": place})
            urls.append((await exits.enter_async_context(serve_inline(own)))["url"])
        admin = GatewayAdmin(urls, "of-all")
        exits.push_async_callback(admin.close)
        await admin.resume()
        yield admin
