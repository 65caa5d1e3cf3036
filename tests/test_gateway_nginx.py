"""nginx in front of several gateway processes, with the example's configuration."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from agentrl.testing.completions import END, Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.client import GatewayAdmin
from runners.gateway.http.control import replica_of
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import write_tiny_tokenizer
from runners.system.processes.ports import free_port
from tests.fakes.replicated_gateway import inline_replicas
from tests.fakes.running_gateway import Agent, Gateway, echo, settings_for, user

EXAMPLE = Path(__file__).parents[1] / "examples" / "gateway_nginx" / "nginx.conf"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@asynccontextmanager
async def nginx(place: Path, admin: GatewayAdmin) -> AsyncIterator[str]:
    """Run nginx in front of two processes; yield its URL."""
    assert NGINX is not None
    port, text = free_port("127.0.0.1"), EXAMPLE.read_text()
    own = {"listen 8080": f"listen 127.0.0.1:{port}"}
    for number, url in enumerate(admin.urls):
        own[f"127.0.0.1:{8100 + number}"] = url.removeprefix("http://")
    for said, here in own.items():
        assert said in text
        text = text.replace(said, here)
    config = place / "nginx.conf"
    config.write_text(text)
    command = [NGINX, "-p", str(place), "-c", str(config), "-g", "daemon off;"]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with asyncio.timeout(20), aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.get(f"http://127.0.0.1:{port}/health") as answer:
                        assert answer.status == 200
                        break
                except aiohttp.ClientConnectionError:
                    assert process.returncode is None
                    await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)")
async def test_one_address_serves_the_sessions_of_both_processes(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    RunStore.create(run_dir, {}).close()
    async with ScriptedEngine() as engine, aiohttp.ClientSession() as http:
        engine.always = Completion(f"hello{END}")
        settings = settings_for(engine.url, write_tiny_tokenizer(tmp_path / "tokenizer"), run_dir)
        async with inline_replicas(settings) as admin, nginx(tmp_path, admin) as url:
            assert await admin.is_reached_at(url)
            keys = [(await admin.create_session(f"s{number}"))[1] for number in range(4)]
            assert {replica_of(key) for key in keys} == {0, 1}
            gateway = Gateway(url, "", admin, admin.admin_key, run_dir, http)
            for number, key in enumerate(keys):
                agent, first = Agent(gateway, f"s{number}", key), [user("hi")]
                events = await agent.stream(agent.body(first))  # a bearer token
                assert events[-1]["type"] == "message_stop"
                answer = await agent.ask(first)  # x-api-key, and the stored answer
                await agent.ask([*first, echo(answer), user("more")])
                stats = await admin.stats(f"s{number}")
                assert (stats["turns"], stats["breaks"]) == (2, [])
            at = replica_of(keys[0])
            assert at is not None
            for key in ("01-nobody", "nobody", f"{1 - at:02d}{keys[0][2:]}"):
                status, _ = await Agent(gateway, "none", key).post("/v1/messages", {})
                assert status == 401
            bearer = {"authorization": f"Bearer {admin.admin_key}"}
            async with http.get(f"{url}/admin/sessions/s0", headers=bearer) as response:
                assert response.status == 404
