"""`agentrl eval bugfix` with a policy that wants no grade: each attempt has its outcome and reward
0, the evaluation goes on, and the next one starts.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from agentrl.testing.completions import Completion, Reply, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.records.outcome import OutcomeCode
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import write_tiny_tokenizer
from tests.fakes.hostile_programs import HOSTILE, SMALL_LIMITS
from tests.fakes.sandbox_backends import skip_without

pytestmark = pytest.mark.integration

ENDED = OutcomeCode.POLICY_AGENT_ENDED
LIE = '{"code": "infra.model", "final_message": "", "finish_reason": null, "turns": 1}'
AGENT = {
    "kills_its_agent": ("kill -9 $PPID", ENDED),
    "ends_everything": ("kill -9 -1", ENDED),
    "prints_in_its_name": (f"echo '{LIE}' > /proc/$PPID/fd/1; kill -9 $PPID", ENDED),
}
"""Programs after which the agent takes no further turn."""
FLOOD = """
import os, socket, time
port = next(
    int(fields[1].split(":")[1], 16)
    for fields in map(str.split, open("/proc/net/tcp"))
    if fields[3] == "0A"
)
first = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
try:
    first[-1].recv(1)  # returns when the gateway ends it
except OSError:
    pass
if os.fork():
    raise SystemExit
os.setsid()
held, lines = [], (b"POST /v1/messages HTTP/1.1\\r\\nx-a: ", b"GET /health HTTP/1.1\\r\\n\\r\\n")
for number in range(20_000):
    try:
        held.append(socket.create_connection(("127.0.0.1", port), 1))
        held[-1].sendall(lines[number % 2])
    except OSError:
        time.sleep(0.01)
    held = held[-200:]
"""
"""Holds and opens connections to the sandbox's gateway, beside the agent, until it is ended."""
GATEWAY = {
    "floods_the_gateway": (
        f"cat > /tmp/flood.py <<'EOF'{FLOOD}EOF\npython /tmp/flood.py </dev/null >/dev/null 2>&1",
        OutcomeCode.POLICY_FINISHED,
    )
}
NAMES = ("deep", "link_to_itself", "tests_are_a_loop", "special_files", "locked", "sparse_file")
PROGRAMS = {name: (HOSTILE[name].script, HOSTILE[name].outcome) for name in NAMES}
PROGRAMS |= GATEWAY | AGENT


class Policy(ScriptedEngine):
    """Follows its script for the agent's requests; those of the pre-flight get a plain answer."""

    async def _generate(self, body: dict[str, Any]) -> Reply:
        if "Solve the task" in self.tokenizer.decode(body["input_ids"]):
            return await super()._generate(body)
        script, self.script = self.script, deque([Completion("ready<|im_end|>")])
        try:
            return await super()._generate(body)
        finally:
            self.script = script


def say(tool: str, **arguments: str) -> str:
    return spoken([{"type": "tool_use", "name": tool, "input": arguments}])


async def evaluate(engine: ScriptedEngine, directory: Path, *overrides: str) -> tuple[int, str]:
    """Run `agentrl eval bugfix` on a scripted policy; return its exit code and what it said."""
    command = [
        *(sys.executable, "-m", "cli.main", "eval", "bugfix", "--json"),
        *("engine=sglang", f"engine.url={engine.url}", "model=local", "model.renderer=qwen3"),
        *(f"model.tokenizer={directory / 'tokenizer'}", f"run.dir={directory / 'run'}"),
        *("harness.max_tokens=4000", "sampling.max_new_tokens=4000", "rollout.concurrency=1"),
        *("rollout.breaker=2", "observe.tensorboard=false", *overrides),
        *(f"rollout.capture.{name}={value}" for name, value in SMALL_LIMITS.items()),
    ]
    environment = {**os.environ, "XDG_CACHE_HOME": str(directory / "cache")}
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, said = await process.communicate()
    return process.returncode or 0, (said + printed).decode()


@pytest.mark.parametrize(
    "isolation", ["bubblewrap", pytest.param("unshare", marks=pytest.mark.slow)]
)
async def test_a_hostile_policy_gets_reward_0_and_the_next_run_starts(
    tmp_path: Path, isolation: str
) -> None:
    skip_without(isolation)
    write_tiny_tokenizer(tmp_path / "tokenizer")
    common = [f"sandbox.isolation={isolation}", "sandbox.warm=0", "sandbox.file_mb=64"]
    async with Policy() as engine:
        for name, (script, _) in PROGRAMS.items():
            engine.say(say("Bash", command=script))
            if name not in AGENT:
                engine.say(say("Submit", message="done"))
        tasks = len(PROGRAMS)
        sizes = [f"eval.tasks={tasks}", f"task.held_out_tasks={tasks}"]
        code, said = await evaluate(engine, tmp_path, *common, *sizes)
        assert code == 0, said
        with RunStore.open(tmp_path / "run", read_only=True) as store:
            records = sorted(store.rollouts(), key=lambda record: record.rollout_id)
        expected = [outcome for _, outcome in PROGRAMS.values()]
        assert [record.outcome.code for record in records] == expected, said
        assert {(record.attempt, record.reward, record.solved) for record in records} == {
            (0, 0.0, False)
        }
        flooded = records[list(PROGRAMS).index("floods_the_gateway")]
        assert flooded.extra["session"]["over_limit"] > 0
        assert not (tmp_path / "run/sandboxes").exists()
        assert "WARNING" not in said
        (tmp_path / "run").rename(tmp_path / "first")
        engine.say(say("Submit", message="done"))
        one = ["eval.tasks=1", "task.held_out_tasks=1"]
        code, said = await evaluate(engine, tmp_path, *common, *one)
        assert code == 0, said
