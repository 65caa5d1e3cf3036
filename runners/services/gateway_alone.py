"""Serve a gateway without a campaign, in its own run directory, whose rollouts it keeps itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError
from conf.schema import Config
from runners.gateway.replicas.replica_set import ReplicaSet
from runners.gateway.service import serve
from runners.gateway.settings import GatewaySettings
from runners.records.store import STORE_FILE, RunStore, State
from runners.services.engine_service import start_engine
from runners.services.faults.wiring import choose_gateway_module, make_gateway_hooks
from runners.services.policy import find_captured_shape
from runners.system.diagnostics import install_diagnostics
from runners.system.processes import ServiceError, ServiceStarter


async def serve_alone(
    config: Config,
    run_dir: Path,
    weights: Path | None,
    tokenizer: Path | None,
    *,
    announce: Callable[[dict[str, Any]], None],
    stop: asyncio.Event,
    report: Callable[[str], None],
) -> None:
    """Serve until ``stop``; announce what ``serve`` announces, when it is ready.

    ``report`` gets the watchdog's warnings. Raises AgentrlError if a service cannot start or dies.
    """
    died: list[ServiceError] = []
    has_served = False

    def announce_ready(info: dict[str, Any]) -> None:
        nonlocal has_served
        has_served = True
        announce(info)

    def service_died(error: ServiceError) -> None:
        died.append(error)
        stop.set()

    store = RunStore.create(run_dir, config.model_dump(mode="json"))
    with (
        _discarded_unless(lambda: has_served, run_dir),
        store,
        install_diagnostics(
            run_dir, "gateway", watchdog_s=config.observe.watchdog_s, report=report
        ),
    ):
        store.set_state(State.RUNNING, gateway=True)
        try:
            async with AsyncExitStack() as exits:
                starter = ServiceStarter(run_dir, exits, on_exit=service_died)
                url = await start_engine(config, starter, weights, tokenizer, 0)
                settings = GatewaySettings.from_config(
                    config,
                    run_dir=run_dir,
                    engine_url=url,
                    tokenizer=tokenizer,
                    routing=find_captured_shape(config, weights),
                    keep_rollouts=True,
                    monitored=True,
                )
                if config.gateway.replicas == 1:
                    hooks = make_gateway_hooks(config.faults)
                    await serve(settings, announce=announce_ready, stop=stop, hooks=hooks)
                else:
                    program = choose_gateway_module(config.faults, settings.model_dump(mode="json"))
                    replicas = ReplicaSet(
                        settings, config.gateway.replicas, program, starter, report=report
                    )
                    exits.push_async_callback(replicas.stop)
                    admin = await replicas.start()
                    announce_ready(
                        {
                            "url": admin.urls[0],
                            "urls": admin.urls,
                            "admin_key": admin.admin_key,
                            "pid": os.getpid(),
                        }
                    )
                    await stop.wait()
            if died:
                raise died[0]
        except AgentrlError as error:
            store.set_state(
                State.FAILED, exit_code=int(error.exit_code), message=str(error), gateway=True
            )
            raise
        store.set_state(State.DONE, exit_code=0, gateway=True)


@contextmanager
def _discarded_unless(is_used: Callable[[], bool], run_dir: Path) -> Iterator[None]:
    """Remove the store that was made for the block if it fails before anything used it, so that
    another try may have the directory; logs stay.
    """
    try:
        yield
    except BaseException:
        if not is_used():
            for suffix in ("", "-wal", "-shm"):
                (run_dir / f"{STORE_FILE}{suffix}").unlink(missing_ok=True)
        raise
