"""The client that programs import, against a gateway in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest

import agentrl
from agentrl.testing.completions import END
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.records.store.run_store import RunStore
from tests.fakes.running_gateway import Gateway, running_gateway, user


@pytest.fixture
async def alone(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> AsyncIterator[Gateway]:
    """Serve a gateway without a campaign."""
    run_dir = tmp_path / "run"
    async with running_gateway(engine.url, tokenizer_dir, run_dir, keep_rollouts=True) as gateway:
        yield gateway


def outcomes(gateway: Gateway) -> dict[str, tuple[str, float | None]]:
    with RunStore.open(gateway.run_dir, read_only=True) as store:
        return {r.rollout_id: (r.outcome.code.value, r.reward) for r in store.rollouts()}


def ask(session: agentrl.AttachedSession, text: str = "hi") -> httpx.Response:
    """Take a turn as a program does that knows its environment alone."""
    environment = session.environment()
    return httpx.post(
        environment["OPENAI_BASE_URL"] + "/chat/completions",
        headers={"authorization": f"Bearer {environment['OPENAI_API_KEY']}"},
        json={"model": environment["OPENAI_MODEL"], "messages": [user(text)]},
        trust_env=False,
    )


async def test_a_session_ends_with_its_reward_and_exact_tokens(
    alone: Gateway, engine: ScriptedEngine
) -> None:
    engine.say(f"hello{END}")

    def work() -> agentrl.FinishedSession:
        gateway = agentrl.GatewayClient(alone.url + "/", alone.admin_key)
        with gateway.session("s1", task="greet", max_turns=3) as session:
            assert session.id == "s1"
            assert ask(session).json()["choices"][0]["message"]["content"] == "hello"
            with pytest.raises(ValueError, match="reward=nan is no finite number"):
                session.finish(float("nan"))
            return session.finish(1.0)

    ended = await asyncio.to_thread(work)
    assert (ended.outcome, ended.reward, ended.stats["turns"]) == ("policy.finished", 1.0, 1)
    (chain,) = ended.segments
    (turn,) = alone.turns("s1")
    assert chain.tokens[chain.loss_mask].tolist() == turn.output_ids.tolist()
    assert chain.tokens.dtype == np.int32
    assert chain.logprobs[chain.loss_mask].tolist() == turn.output_logprobs.tolist()
    assert outcomes(alone) == {"s1": ("policy.finished", 1.0)}


async def test_it_works_where_an_event_loop_runs_already(
    alone: Gateway, engine: ScriptedEngine
) -> None:
    """As in a notebook: the gateway is elsewhere, and the caller's thread has a loop."""

    def notebook() -> str:
        async def cell() -> str:
            with agentrl.GatewayClient(alone.url, alone.admin_key).session() as session:
                return session.api_key

        return asyncio.run(cell())

    assert len(await asyncio.to_thread(notebook)) >= 32


async def test_leaving_by_an_exception_cancels_the_session_and_its_key(
    alone: Gateway, engine: ScriptedEngine
) -> None:
    engine.say(f"hello{END}")

    def work() -> None:
        gateway = agentrl.GatewayClient(alone.url, alone.admin_key)
        with gateway.session("s1") as session:
            opened.append(session)
            ask(session)
            raise ZeroDivisionError

    opened: list[agentrl.AttachedSession] = []
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(work)
    assert (await asyncio.to_thread(ask, opened[0])).status_code == 401
    assert outcomes(alone) == {"s1": ("cancelled.user", None)}


async def test_a_session_that_nobody_finished_ends_without_a_reward(
    alone: Gateway, engine: ScriptedEngine
) -> None:
    engine.say(f"hello{END}")

    def work() -> agentrl.FinishedSession | None:
        gateway = agentrl.GatewayClient(alone.url, alone.admin_key)
        with gateway.session("s1") as session:
            ask(session)
        return session.finished

    ended = await asyncio.to_thread(work)
    assert ended is not None
    assert outcomes(alone) == {"s1": ("policy.finished", None)}


async def test_a_wrong_key_and_a_gateway_that_is_not_there_are_errors_that_say_so(
    alone: Gateway, unused_tcp_port: int
) -> None:
    def work(url: str, key: str) -> None:
        with agentrl.GatewayClient(url, key).session():
            raise AssertionError("there is no session")

    with pytest.raises(agentrl.GatewayError, match="wrong admin key"):
        await asyncio.to_thread(work, alone.url, "guess")
    gone = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(agentrl.GatewayError, match=f"the gateway at {gone} does not answer"):
        await asyncio.to_thread(work, gone, "guess")


def test_a_program_gets_neither_the_engines_key_nor_another_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (
        "AGENTRL_ENGINE_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_API_KEY",
        "GOOGLE_API_KEY",
    ):
        monkeypatch.setenv(name, "secret")
    session = agentrl.AttachedSession(agentrl.GatewayClient("http://g:1", "admin"), "s", "key")
    environment = session.environment()
    assert not {"secret", "admin"} & set(environment.values())
    assert environment["ANTHROPIC_BASE_URL"] == session.base_url == "http://g:1"
    assert environment["ANTHROPIC_API_KEY"] == "key"
    assert environment["PATH"]
