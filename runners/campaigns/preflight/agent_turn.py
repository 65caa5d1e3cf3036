"""Let the agent program take one turn, as in a rollout: sandbox → gateway → reply.

The turn uses the run's own harness, sandbox and gateway code; only the engine may be replaced, by a
canned reply (``engine=embedded``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conf.errors import AgentrlError, ExitCode
from conf.schema import Config
from conf.sections.harness import name_program
from conf.sections.model import EndpointModelConfig, TinyModelConfig
from runners.engines.contract import Engine, Generation, SamplingParams, TokenIds
from runners.gateway.client import GatewayAdmin
from runners.gateway.service import NO_HOOKS, GatewayHooks, serve_inline
from runners.gateway.settings import GatewaySettings
from runners.records.outcome import OutcomeClass
from runners.records.record import Turn
from runners.records.starting_policy import find_given_files, find_shipped_policy
from runners.records.store import RunStore
from runners.records.tokenizer import load_tokenizer
from runners.rollouts.harnesses.contract import HarnessContext, HarnessResult
from runners.rollouts.harnesses.registry import make_harness
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxSpec

TASK = "Answer with one word. Call no tool."
REPLY = "Hello"
CONTEXT_TOKENS = 1 << 20
"""No prompt is refused: the check measures the length of the first one."""
SESSION = "check"

OUTPUT_LIMIT = 600
"""Characters of a program's output that a message repeats."""


class AgentTurnError(AgentrlError):
    """The agent program did not take its turn."""

    exit_code = ExitCode.PREFLIGHT


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """The result of one turn."""

    result: HarnessResult
    turns: int
    """Turns that the gateway recorded."""
    prompt_tokens: int | None
    """Of the first prompt; None if the policy's own tokenizer is not here."""
    seconds: float
    guarantees: dict[str, str]
    """Promises of the sandbox, and how each is kept."""


@dataclass(frozen=True, slots=True)
class PolicyFiles:
    """The files of the policy."""

    tokenizer: Path | None
    """None: the engine takes texts."""
    own: bool
    """True if the tokenizer is the policy's; if not, it is the tiny policy's in its place."""
    weights: Path | None


def find_policy_files(config: Config) -> PolicyFiles:
    """Return the policy's files, with the tiny policy's tokenizer if there is no other."""
    model = config.model
    if isinstance(model, EndpointModelConfig):
        return PolicyFiles(None, True, None)
    shipped = find_shipped_policy()
    if isinstance(model, TinyModelConfig):
        weights, tokenizer = find_given_files(model)
        return PolicyFiles(tokenizer or shipped, True, weights or shipped)
    return PolicyFiles(model.tokenizer or shipped, model.tokenizer is not None, model.path)


@dataclass(frozen=True, slots=True)
class AgentRun:
    """The end of an agent program, and the turns that the gateway recorded."""

    result: HarnessResult
    turns: list[Turn]
    seconds: float
    guarantees: dict[str, str]


async def take_agent_turn(
    config: Config, policy: PolicyFiles, work: Path, url: str | None
) -> AgentTurn:
    """Run the agent program of ``config`` for one task; the engine at ``url`` answers.

    Without ``url`` a canned reply does. Raises AgentTurnError if the program takes no turn, another
    AgentrlError if it cannot be started.
    """
    run = await run_agent(config, policy, work, url)
    result, turns = run.result, run.turns
    if not turns or result.code.outcome_class not in (OutcomeClass.POLICY, OutcomeClass.BUDGET):
        raise AgentTurnError(
            f"harness={name_program(config.harness)} took {len(turns)} turns and ended with "
            f"{result.code}: {_quote(result.output) or 'it printed nothing'}"
        )
    prompt = turns[0].prompt_tokens if policy.own else None
    return AgentTurn(result, len(turns), prompt, run.seconds, run.guarantees)


def _quote(output: str) -> str:
    """Return the end of an output on one line: each line of a message is shown as one error."""
    return " ".join(output.split())[-OUTPUT_LIMIT:]


async def run_agent(
    config: Config,
    policy: PolicyFiles,
    work: Path,
    url: str | None,
    make_engine: Callable[[Engine, list[int]], Engine] | None = None,
) -> AgentRun:
    """Run the agent program of ``config`` for one task, in a sandbox, with a gateway of its own.

    The engine at ``url`` answers; without one, that which ``make_engine`` makes of the client to
    close and the tokens of a reply.
    """
    harness = make_harness(config.harness, config.scenario)
    source = work / "source"
    source.mkdir(parents=True)
    async with AsyncExitStack() as exits:
        backend = await asyncio.to_thread(make_backend, config.sandbox, work / "sandboxes")
        exits.push_async_callback(backend.close)
        gateway = await exits.enter_async_context(
            _running_gateway(
                config, work / "run", policy.tokenizer, url, make_engine or CannedEngine
            )
        )
        admin = GatewayAdmin(gateway["url"], gateway["admin_key"])
        exits.push_async_callback(admin.close)
        _, key = await admin.create_session(SESSION)
        spec = SandboxSpec(
            name=SESSION,
            source=source,
            network="gateway",
            gateway_control=Path(gateway["control"]),
            gateway_url=config.gateway.public_url or gateway["url"],
            session_key=key,
            mounts=harness.mounts(),
        )
        started = time.monotonic()
        sandbox = await backend.create(spec)
        exits.push_async_callback(sandbox.close)
        context = HarnessContext(TASK, key, "policy", config.rollout.deadlines.harness_s)
        result = await harness.run(sandbox, context)
        seconds = time.monotonic() - started
        await admin.finish(SESSION, segments=False)
    with RunStore.open(work / "run", read_only=True) as store:
        return AgentRun(result, store.turns(SESSION), seconds, backend.guarantees())


@asynccontextmanager
async def _running_gateway(
    config: Config,
    run_dir: Path,
    tokenizer: Path | None,
    url: str | None,
    make_engine: Callable[[Engine, list[int]], Engine],
) -> AsyncIterator[dict[str, Any]]:
    """Serve a gateway in this loop, with a new store; yield its announcement."""
    RunStore.create(run_dir, {}).close()
    hooks = NO_HOOKS
    if url is None:
        assert tokenizer is not None
        reply = load_tokenizer(tokenizer).encode(REPLY)
        url = "http://127.0.0.1:1"  # never called
        hooks = GatewayHooks(wrap_engine=lambda client, turn_log: make_engine(client, reply))
    settings = GatewaySettings.from_config(
        config, run_dir=run_dir, engine_url=url, tokenizer=tokenizer
    ).model_copy(update={"max_context_tokens": CONTEXT_TOKENS})
    async with serve_inline(settings, hooks) as info:
        yield info


class CannedEngine:
    """An ``Engine`` that gives every prompt the same reply."""

    def __init__(self, client: Engine, reply: list[int]) -> None:
        self._reply = reply
        self.close = client.close

    async def generate(
        self, input_ids: TokenIds, params: SamplingParams, *, rid: str
    ) -> Generation:
        """Return the reply and the token that ends a turn in this model family."""
        ids = [*self._reply, *params.stop_token_ids[:1]]
        return Generation(
            output_ids=np.array(ids, dtype=np.int32),
            logprobs=np.zeros(len(ids), dtype=np.float32),
            finish_reason="stop",
            matched=ids[-1],
            prompt_tokens=len(input_ids),
            cached_tokens=0,
            weight_version=0,
            engine_s=0.0,
        )
