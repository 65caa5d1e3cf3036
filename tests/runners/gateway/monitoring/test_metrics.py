"""Prometheus reads sums over all sessions at a port of its own, with a key; agents read nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.errors import AgentrlError
from runners.gateway.http.metrics_endpoint import key_path, load_key
from runners.gateway.monitoring.counts import BUCKETS_S, Durations, GatewayCounts
from runners.gateway.monitoring.exposition import write_exposition
from runners.system.processes.ports import free_port
from tests.fakes.running_gateway import Gateway, running_gateway, user

prometheus = pytest.importorskip("prometheus_client.parser")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


async def scrape(gateway: Gateway, port: int, key: str) -> dict[str, float]:
    """Return the samples by name and labels, read by Prometheus's own parser."""
    async with gateway.http.get(
        f"http://127.0.0.1:{port}/metrics", headers={"authorization": f"Bearer {key}"}
    ) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/plain"
        text = await answer.text()
    assert "s1" not in text
    found: dict[str, float] = {}
    for family in prometheus.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(value for name, value in sample.labels.items() if name != "process")
            name = sample.name.removeprefix("agentrl_gateway_")
            found[f"{name}[{labels}]" if labels else name] = sample.value
    return found


async def test_a_scrape_has_the_sums_of_what_the_sessions_did(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    engine.always = Completion("I am done.<|im_end|>")
    port = free_port("127.0.0.1")
    async with running_gateway(
        engine.url, tokenizer_dir, tmp_path / "run", metrics_port=port
    ) as gateway:
        before = await scrape(gateway, port, load_key())
        assert (before["sessions"], before["turn_seconds_count"]) == (0, 0)
        agents = [await gateway.session(name) for name in ("s1", "s2")]
        for agent in agents:
            await agent.ask([user("hello")])
        after = await scrape(gateway, port, load_key())
        turns = [turn for name in ("s1", "s2") for turn in gateway.turns(name)]
    assert after["sessions"] == 2
    assert after["turns_in_flight"] == after["engine_calls_waiting"] == 0
    assert after["sampled_tokens_total"] == sum(turn.output_tokens for turn in turns) > 0
    assert after["prompt_tokens_total"] == sum(turn.prompt_tokens for turn in turns)
    assert after["turn_seconds_count"] == after["turn_seconds_bucket[+Inf]"] == len(turns) == 2
    assert after["turn_seconds_sum"] == pytest.approx(sum(turn.total_s for turn in turns))
    assert after["request_bytes_total"] > 2 * len("hello")
    assert after["answer_bytes_total"] > 2 * len("I am done.")
    assert after["answers_total[200]"] >= before.get("answers_total[200]", 0) + 4


async def test_what_was_cut_off_and_what_failed_is_counted(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    port = free_port("127.0.0.1")
    async with running_gateway(
        engine.url, tokenizer_dir, tmp_path / "run", metrics_port=port, turn_s=0.2
    ) as gateway:
        agent = await gateway.session("s1")
        engine.always = Completion("never", delay_s=30.0)
        with pytest.raises(AssertionError):
            await agent.ask([user("hello")])
        after = await scrape(gateway, port, load_key())
    assert after["failed_total"] == 1
    assert after["turn_seconds_count"] == 0


async def test_nobody_reads_it_without_the_key_nor_at_the_agents_port(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    port = free_port("127.0.0.1")
    async with running_gateway(
        engine.url, tokenizer_dir, tmp_path / "run", metrics_port=port
    ) as gateway:
        agent = await gateway.session("s1")
        session_key, own = agent.key, f"http://127.0.0.1:{port}"
        tries: list[tuple[str, dict[str, str], int]] = [
            (f"{own}/metrics", {}, 401),
            (f"{own}/metrics", {"authorization": f"Bearer {session_key}"}, 401),
            (f"{own}/metrics", {"authorization": f"Bearer {gateway.admin_key}"}, 401),
            (f"{own}/admin/sessions/s1", {"authorization": f"Bearer {load_key()}"}, 404),
            (f"{gateway.url}/metrics", {"authorization": f"Bearer {load_key()}"}, 404),
            (f"{gateway.url}/metrics", {"authorization": f"Bearer {session_key}"}, 404),
            (f"{gateway.url}/admin/metrics", {"authorization": f"Bearer {session_key}"}, 401),
        ]
        for url, headers, wanted in tries:
            async with gateway.http.get(url, headers=headers) as answer:
                assert answer.status == wanted, url
                assert "sampled_tokens" not in await answer.text()
    assert key_path().stat().st_mode & 0o777 == 0o600


async def test_a_port_that_is_taken_is_named(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(AgentrlError, match=f"gateway.metrics_port={port} cannot be listened"):
            async with running_gateway(
                engine.url,
                tokenizer_dir,
                tmp_path / "run",
                metrics_port=port,
                port_patience_s=0.1,
            ):
                pass


def test_a_process_is_named_and_a_histogram_adds_up() -> None:
    counts = GatewayCounts(failed=3)
    for seconds in (0.05, 0.051, 1000.0):
        counts.turn.add(seconds)
    now: dict[str, Any] = dict.fromkeys(
        ("sessions", "turns_in_flight", "engine_calls", "engine_calls_waiting"), 0
    )
    now["engine_calls_limit"] = 8
    text = write_exposition("1", now | counts.to_dict()).decode()
    assert 'agentrl_gateway_failed_total{process="1"} 3.0' in text
    assert 'agentrl_gateway_turn_seconds_bucket{le="0.05",process="1"} 1.0' in text
    assert 'agentrl_gateway_turn_seconds_bucket{le="0.1",process="1"} 2.0' in text
    assert 'agentrl_gateway_turn_seconds_bucket{le="600.0",process="1"} 2.0' in text
    assert 'agentrl_gateway_turn_seconds_bucket{le="+Inf",process="1"} 3.0' in text
    assert len(Durations().counts) == len(BUCKETS_S) + 1
