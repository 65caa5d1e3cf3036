"""Endpoints of texts from the command line: evaluation, recording, checks, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from conf.compose import compose
from conf.errors import ExitCode
from conf.sections.section import ENGINE_KEY
from runners.campaigns.evaluation.benchmarks import find_benchmark
from runners.records.store.run_store import RunStore
from tests.cli.conftest import ENVIRONMENT, Agentrl
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.endpoint_servers import MODEL, Call, EndpointServer, TextAnswer
from tests.fakes.openai_server import OpenaiServer

pytestmark = pytest.mark.integration

SERVERS = [("openai", OpenaiServer), ("anthropic", AnthropicServer)]
EVALUATION = ("eval.tasks=2", "run.dir=measured", "sampling.eval_temperature=1")
LOCAL = ("sandbox.memory_mb=1024", "rollout.concurrency=2", "sandbox.warm=0")
KEY = "sk-only-for-the-endpoint"


def solve_first(kind: str) -> Any:
    """Return answers that solve the first task of ``bugfix``, and give up on the others."""
    lines = ["task=bugfix", "run.steps=0", f"engine={kind}", "engine.url=http://x"]
    config = compose([*lines, f"engine.model={MODEL}"])
    first = find_benchmark("bugfix").tasks(config)[0]
    command = f"git apply - <<'PATCH'\n{first.gold_patch}PATCH"

    def answer(body: dict[str, Any]) -> TextAnswer:
        said = json.dumps(body["messages"])
        if json.dumps(first.problem_statement)[1:-1] not in said:
            return TextAnswer("I give up.", prompt_tokens=100)
        if len(body["messages"]) < 3:
            return TextAnswer("", (Call("Bash", {"command": command}),), prompt_tokens=100)
        return TextAnswer("", (Call("Submit", {"message": "done"}),), prompt_tokens=200)

    return answer


@pytest.mark.parametrize(("kind", "make"), SERVERS)
async def test_an_endpoint_is_evaluated_and_nothing_made_of_it_can_be_trained(
    agentrl_process: Agentrl, tmp_path: Path, kind: str, make: type[EndpointServer]
) -> None:
    async def run(*words: str) -> Any:
        return await asyncio.to_thread(agentrl_process, *words, AGENTRL_ENGINE_KEY=KEY)

    async with make() as server:
        server.api_key, server.make_answer = KEY, solve_first(kind)
        engine = (f"engine={kind}", f"engine.url={server.url}/v1", f"engine.model={MODEL}")
        done = await run("eval", "bugfix", *engine, *EVALUATION, *LOCAL)
        assert done.code == ExitCode.DONE, done.stderr
        status = await run("status", "measured", "--json")
    assert f"engine={kind} takes and gives texts" in done.stderr
    report = json.loads((tmp_path / "measured" / "report.json").read_text())
    assert report["resolved_instances"] == 1, report
    assert report["pass_at"][0]["value"] == 0.5
    assert report["model_name_or_path"] == MODEL
    assert report["usage"]["sampled_tokens"]["max"] == 14
    assert "token ids and logprobs are not known" in json.loads(status.stdout)["inexact"]
    with RunStore.open(tmp_path / "measured", read_only=True) as store:
        turns = [turn for session in store.sessions() for turn in store.turns(session)]
        [solved] = [record for record in store.rollouts() if record.solved]
    assert len(turns) == 3
    assert not any(turn.has_ids for turn in turns)
    formats = ("--format", "jsonl,atif,html,parquet", "--validate")
    dumped = await run("dump-trajectories", "measured", *formats)
    assert dumped.code == ExitCode.DONE, dumped.stderr
    line = json.loads((tmp_path / "measured/dump/trajectories.jsonl").read_text().splitlines()[0])
    assert line["tokens"]["trained"] == 0
    refused = await run("dump-trajectories", "measured", "--format", "slime", "--out", "no")
    assert refused.code == ExitCode.USAGE
    assert "--format slime needs token ids" in refused.stderr
    refused = await run("replay", "measured", "--rollout", solved.rollout_id)
    assert refused.code == ExitCode.USAGE
    assert "its turns have no token ids" in refused.stderr
    assert (await run("report", "measured")).code == ExitCode.DONE
    assert not (tmp_path / "no").exists()
    stored = [path for path in (tmp_path / "measured").rglob("*") if path.is_file()]
    assert not [path for path in stored if KEY.encode() in path.read_bytes()]
    assert KEY not in done.stderr + done.stdout + dumped.stderr + refused.stderr


@pytest.mark.parametrize(("kind", "make"), SERVERS)
async def test_check_asks_the_endpoint_and_lets_the_agent_take_one_turn(
    agentrl_process: Agentrl, kind: str, make: type[EndpointServer]
) -> None:
    async with make() as server:
        engine = (f"engine={kind}", f"engine.url={server.url}", f"engine.model={MODEL}")
        words = ("check", "eval", "bugfix", *engine, "sampling.eval_temperature=1", *LOCAL)
        done = await asyncio.to_thread(agentrl_process, *words)
        server.models = ["other"]
        wrong = await asyncio.to_thread(agentrl_process, *words)
    assert done.code == ExitCode.DONE, done.stderr
    assert "engine: token ids  ok: not known: nothing can be trained" in done.stdout
    assert "one turn" in done.stdout
    assert wrong.code == ExitCode.PREFLIGHT
    assert "does not exist" in wrong.stderr


@pytest.mark.parametrize(("kind", "make"), SERVERS)
async def test_a_gateway_records_any_agent_on_an_endpoint(
    tmp_path: Path, kind: str, make: type[EndpointServer]
) -> None:
    async with make() as server:
        engine = (f"engine={kind}", f"engine.url={server.url}", f"engine.model={MODEL}")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli.main", "gateway", *engine, "run.dir=recorded"),
            cwd=tmp_path,
            env={**os.environ, **ENVIRONMENT},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        info = json.loads(await process.stdout.readline())
        async with httpx.AsyncClient(base_url=info["url"]) as client:
            admin = {"authorization": f"Bearer {info['admin_key']}"}
            made = await client.post("/admin/sessions", headers=admin, json={"session_id": "s"})
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            key = {"authorization": f"Bearer {made.json()['api_key']}"}
            answer = await client.post("/v1/chat/completions", headers=key, json=body)
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
    assert answer.json()["choices"][0]["message"]["content"] == "ok"
    assert b"token ids and logprobs are not known" in said
    assert process.returncode == ExitCode.DONE, said
    with RunStore.open(tmp_path / "recorded", read_only=True) as store:
        [turn] = store.turns("s")
    assert (turn.has_ids, turn.output_tokens) == (False, 7)


def test_what_needs_ids_is_refused_before_anything_is_made(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    engine = ("engine=openai", "engine.url=http://127.0.0.1:9", f"engine.model={MODEL}")
    done = agentrl("run", *engine)
    assert done.code == ExitCode.USAGE
    assert "run.steps=100 trains" in done.stderr
    done = agentrl("run", *engine, "run.steps=0")
    assert "agentrl eval BENCHMARK" in done.stderr
    done = agentrl("run", *engine, "run.steps=0", "--dry-run")
    assert done.code != ExitCode.DONE
    assert "token ids and logprobs are not known" in " ".join(done.stdout.split())
    done = agentrl("eval", "bugfix", *engine, "routing_replay=rollout")
    assert "set routing_replay=off" in done.stderr
    done = agentrl("eval", "bugfix", *engine)
    assert "Start the server that engine.url names" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_key_and_no_isolation_are_refused_together(
    agentrl: Agentrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENGINE_KEY, KEY)
    engine = ("engine=openai", "engine.url=http://127.0.0.1:9", f"engine.model={MODEL}")
    done = agentrl("eval", "bugfix", *engine, "sandbox.isolation=none")
    assert done.code == ExitCode.PREFLIGHT
    assert f"read {ENGINE_KEY} in the environment" in done.stderr
    assert KEY not in done.stderr
    monkeypatch.delenv(ENGINE_KEY)
    done = agentrl("eval", "bugfix", *engine, "sandbox.isolation=none")
    assert "in the environment of this process" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_show_says_that_tokens_are_not_known(agentrl: Agentrl) -> None:
    engine = ("engine=anthropic", "engine.url=http://x", f"engine.model={MODEL}")
    done = agentrl("show", "eval", "bugfix", *engine)
    assert "engine=anthropic takes and gives texts" in done.stderr
    assert "kind: endpoint" in done.stdout
