"""``agentrl gateway``: one JSON line, then sessions for any client, until a signal."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from conf.errors import ExitCode
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import write_tiny_tokenizer
from tests.cli.conftest import ENVIRONMENT, Agentrl

pytestmark = pytest.mark.integration


@pytest.fixture
def overrides(tmp_path: Path) -> list[str]:
    """Return the arguments of a gateway whose engine is never called."""
    (tmp_path / "tokenizer").mkdir()
    write_tiny_tokenizer(tmp_path / "tokenizer")
    return [
        *("engine=sglang", "engine.url=http://127.0.0.1:9", "run.dir=recorded"),
        *("model.tokenizer=tokenizer", "model.renderer=qwen3"),
    ]


@pytest.fixture
def process(tmp_path: Path, overrides: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", "gateway", *overrides],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as gateway:
        yield gateway
        gateway.kill()


def test_the_first_line_is_enough_to_create_a_session(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert process.stdout is not None
    info = json.loads(process.stdout.readline())
    admin = {"authorization": f"Bearer {info['admin_key']}"}
    made = httpx.post(f"{info['url']}/admin/sessions", headers=admin, json={"session_id": "mine"})
    assert made.json()["session_id"] == "mine"
    assert httpx.post(f"{info['url']}/admin/sessions", json={}).status_code == 401
    long = {"session_id": "long", "max_context_tokens": 200_000}
    made = httpx.post(f"{info['url']}/admin/sessions", headers=admin, json=long)
    assert made.status_code == 200, "the limits of the tiny model are not those of a served one"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (ExitCode.DONE, ""), err
    with RunStore.open(tmp_path / info["run_dir"], read_only=True) as store:
        assert set(store.sessions()) == {"mine", "long"}
        assert store.state().state is State.DONE
    run = [sys.executable, "-m", "cli.main", "run", "--resume", info["run_dir"]]
    refused = subprocess.run(
        run, cwd=tmp_path, env={**os.environ, **ENVIRONMENT}, capture_output=True, check=False
    )
    assert refused.returncode == ExitCode.USAGE
    assert b"holds the sessions of a gateway" in refused.stderr


def test_a_port_in_use_ends_it_with_a_message(agentrl: Agentrl, overrides: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = agentrl("gateway", *overrides, f"gateway.port={port}")
    assert done.code == ExitCode.SERVICE_GONE
    assert f"gateway.port={port} on 127.0.0.1 is in use" in done.stderr
    assert done.stdout == ""


def test_a_sweep_is_refused(agentrl: Agentrl) -> None:
    done = agentrl("gateway", "gateway.port=1,2")
    assert done.code == ExitCode.USAGE
    assert "is a sweep, which only `agentrl run` takes" in done.stderr
