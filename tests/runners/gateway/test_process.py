"""The gateway as the process that a run starts."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from conf.errors import AgentrlError, ExitCode
from runners.gateway.client import GatewayAdmin
from runners.gateway.refusal import GatewayError
from runners.gateway.service import serve
from runners.gateway.settings import GatewaySettings
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.system.processes.service import Service, ServiceError
from tests.fakes.running_gateway import deliver_listener, settings_for

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(tokenizer_dir: Path, tmp_path: Path) -> GatewaySettings:
    run_dir = tmp_path / "run"
    RunStore.create(run_dir, {}).close()
    return settings_for("http://127.0.0.1:9", tokenizer_dir, run_dir)


async def start(settings: GatewaySettings, tmp_path: Path, **changes: Any) -> Service:
    sent = settings.model_copy(update=changes).model_dump(mode="json")
    log = tmp_path / "gateway.log"
    return await Service.start("gateway", "runners.gateway", sent, log=log, deadline_s=60)


async def test_it_serves_sandboxes_until_it_is_stopped_and_leaks_nothing(
    settings: GatewaySettings, tmp_path: Path
) -> None:
    gateway = await start(settings, tmp_path)
    assert gateway.info["pid"] == gateway.pid
    admin = GatewayAdmin(gateway.info["url"], gateway.info["admin_key"])
    process = psutil.Process(gateway.pid)

    async def live(session_id: str) -> str:
        _, key = await admin.create_session(session_id)
        url = await deliver_listener(gateway.info["control"], key)
        async with aiohttp.ClientSession(headers={"x-api-key": key}) as http:
            async with http.get(url + "/v1/models") as response:
                assert response.status == 200
            await admin.delete(session_id)
            with pytest.raises(aiohttp.ClientConnectionError):
                await http.get(url + "/v1/models")
        return key

    keys = [await live("first")]
    handles = process.num_fds()
    for batch in range(5):
        keys += await asyncio.gather(*(live(f"s{batch}-{i}") for i in range(10)))
    assert process.num_fds() <= handles + 10, "the admin client's own connections"
    await gateway.stop()
    assert not await admin.healthy()
    await admin.close()
    assert not Path(gateway.info["control"]).parent.exists()
    log = (tmp_path / "gateway.log").read_text()
    assert not [key for key in [*keys, gateway.info["admin_key"]] if key in log]
    assert "Traceback" not in log


DRIVER = """
import asyncio, json, os, sys
from pathlib import Path
from runners.system.processes.service import Service
async def main():
    service = await Service.start("gateway", "runners.gateway", json.loads(sys.argv[1]),
                                  log=Path(sys.argv[2]), deadline_s=60)
    print(json.dumps(service.info), flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""


async def start_orphan(settings: GatewaySettings, tmp_path: Path) -> dict[str, Any]:
    """Start a gateway under a driver that is killed as soon as it is ready; return its info."""
    argv = [sys.executable, "-c", DRIVER, settings.model_dump_json(), str(tmp_path / "orphan.log")]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, timeout=600)
    info: dict[str, Any] = json.loads(done.stdout)
    return info


async def test_a_gateway_whose_parent_died_ends_at_once(
    settings: GatewaySettings, tmp_path: Path
) -> None:
    info = await start_orphan(settings, tmp_path)
    with suppress(psutil.NoSuchProcess):  # it may be faster than we
        await asyncio.to_thread(psutil.Process(info["pid"]).wait, 20)


async def test_a_resumed_run_gets_the_port_and_the_store_of_its_killed_predecessor(
    settings: GatewaySettings, tmp_path: Path
) -> None:
    port = int((await start_orphan(settings, tmp_path))["url"].rpartition(":")[2])
    gateway = await start(settings, tmp_path, port=port)
    assert gateway.info["url"].endswith(f":{port}")
    await gateway.stop()


async def test_a_gateway_that_cannot_store_turns_ends_with_the_reason(
    settings: GatewaySettings, tmp_path: Path
) -> None:
    gateway = await start(settings, tmp_path)
    ended: asyncio.Future[ServiceError] = asyncio.get_running_loop().create_future()
    gateway.watch(ended.set_result)
    psutil.Process(gateway.pid).rlimit(psutil.RLIMIT_FSIZE, (200_000, 200_000))
    admin = GatewayAdmin(gateway.info["url"], gateway.info["admin_key"])

    async def fill() -> None:
        for number in range(1000):
            await admin.create_session(f"s{number}")

    with pytest.raises(GatewayError):
        await fill()
    error = str(await ended)
    assert "exit 4" in error
    assert "store.sqlite" in error
    await admin.close()
    await gateway.stop()


async def test_a_port_in_use_is_reported_with_the_fix(
    settings: GatewaySettings, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=rf"exit 4.*gateway\.port={port} .* is in use: ch"):
            await start(settings, tmp_path, port=port, port_patience_s=0.05)


async def test_a_port_that_its_dying_owner_frees_is_taken(
    settings: GatewaySettings, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as dying:
        port = dying.getsockname()[1]
        stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        wanted = settings.model_copy(update={"port": port})
        serving = asyncio.create_task(serve(wanted, announce=ready.set_result, stop=stop))
        await asyncio.wait({serving}, timeout=0.3)
        assert not serving.done()
    assert (await ready)["url"] == f"http://127.0.0.1:{port}"
    stop.set()
    await serving


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"renderer": "qwen"}, ExitCode.USAGE, r"model\.renderer='qwen' is unknown"),
        ({"tokenizer": Path("/nowhere")}, ExitCode.USAGE, r"model\.tokenizer"),
        ({"run_dir": Path("/nowhere")}, ExitCode.DATA_REFUSED, "holds no run"),
        ({"host": "192.0.2.1"}, ExitCode.SERVICE_GONE, r"gateway\.host=192\.0\.2\.1"),
    ],
)
async def test_impossible_settings_are_reported_with_their_exit_code(
    changes: dict[str, Any], code: ExitCode, said: str, settings: GatewaySettings
) -> None:
    with pytest.raises(AgentrlError, match=said) as caught:
        await serve(settings.model_copy(update=changes), announce=print, stop=asyncio.Event())
    assert caught.value.exit_code is code


async def test_a_second_gateway_of_the_same_run_is_refused(
    settings: GatewaySettings,
) -> None:
    with RunStore.open(settings.run_dir) as first:
        first.claim_arrays()
        changed = settings.model_copy(update={"store_patience_s": 0.05})
        with pytest.raises(StoreError, match="written by another process"):
            await serve(changed, announce=print, stop=asyncio.Event())


@pytest.mark.parametrize("host", ["::1", "::"])
async def test_it_can_be_reached_at_an_ipv6_address(
    settings: GatewaySettings, tmp_path: Path, host: str
) -> None:
    gateway = await start(settings, tmp_path, host=host)
    admin = GatewayAdmin(gateway.info["url"], gateway.info["admin_key"])
    assert await admin.healthy()
    await admin.close()
    await gateway.stop()
