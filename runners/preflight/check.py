"""What a run needs, tried before it: its engine, and one turn of its agent program (sandbox →
gateway → reply), as a rollout has it.

A server of ``engine=sglang_launch`` is started for it. With ``engine=embedded``, whose policy may
not be made yet, the reply is canned.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from conf.errors import AgentrlError, ExitCode
from conf.schema import Config
from conf.sections.engine import EmbeddedEngineConfig
from conf.sections.model import TinyModelConfig
from conf.sections.moe import MoeModel
from runners.engines.capabilities import Finding, refuse_trouble
from runners.engines.contract import Engine, Generation, SamplingParams
from runners.gateway.chat_template import make_renderer
from runners.gateway.client import GatewayAdmin
from runners.gateway.inline import serve_inline
from runners.gateway.service import GatewayHooks
from runners.gateway.tokenizer import load_tokenizer
from runners.harnesses.contract import HarnessContext, HarnessResult
from runners.harnesses.registry import make_harness
from runners.preflight.language import Language, Parser, probe
from runners.runtime.services import captured_shape, gateway_settings, start_engine, workers_of
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxSpec
from runners.store.run_store import RunStore
from runners.training.bootstrap.tiny import tiny_directory
from runners.training.bootstrap.vocabulary import BYTES_ONLY, save_tokenizer, train_tokenizer
from runners.trajectory.outcome import OutcomeClass

TASK = "Answer with one word. Call no tool."
REPLY = "Hello"
CONTEXT_TOKENS = 1 << 20
"""Room for any first prompt: how long it is, is what the check finds out."""
SESSION = "check"


class DialBackError(AgentrlError):
    """The agent program did not take its turn."""

    exit_code = ExitCode.PREFLIGHT


@dataclass(frozen=True, slots=True)
class DialBack:
    """What one turn showed."""

    result: HarnessResult
    turns: int
    """That the gateway recorded."""
    prompt_tokens: int | None
    """Of the first prompt; None: the model's own tokenizer is not made yet."""
    seconds: float
    guarantees: dict[str, str]
    """What holds in the sandbox."""


@dataclass(frozen=True, slots=True)
class _Policy:
    """What is here of the policy."""

    tokenizer: Path
    own: bool
    """Whether the tokenizer is the policy's; else one of bytes, in its place."""
    weights: Path | None


async def check_run(
    config: Config, work: Path, *, tell: Callable[[list[Finding]], None]
) -> tuple[list[Finding], DialBack]:
    """Try the engine, say what was found, and let the agent program take a turn; files go below
    ``work``.

    Raises AgentrlError for whatever stops a run: EngineUnfit, DialBackError.
    """
    policy = _policy(config, work)
    async with AsyncExitStack() as exits:
        url = None
        if not isinstance(config.engine, EmbeddedEngineConfig):
            # one that ends early is found by what is tried next
            url = await start_engine(
                config, exits, policy.weights, policy.tokenizer, 0, work, lambda error: None
            )
        findings = [] if url is None else await probe_engine(config, policy, url)
        tell(findings)
        refuse_trouble(findings)
        return findings, await dial_back(config, policy, work, url)


async def dial_back(config: Config, policy: _Policy, work: Path, url: str | None) -> DialBack:
    """Let the agent program of ``config`` take a turn; the engine at ``url`` answers, or a canned
    reply.

    Raises AgentrlError if it cannot, DialBackError if it does not.
    """
    harness = make_harness(config.harness, config.scenario)
    source = work / "source"
    source.mkdir(parents=True)
    async with AsyncExitStack() as exits:
        backend = await asyncio.to_thread(make_backend, config.sandbox, work / "sandboxes")
        exits.push_async_callback(backend.close)
        gateway = await exits.enter_async_context(
            _gateway(config, work / "run", policy.tokenizer, url)
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
        await admin.finish(SESSION)
    with RunStore.open(work / "run", read_only=True) as store:
        turns = store.turns(SESSION)
    if not turns or result.code.outcome_class not in (OutcomeClass.POLICY, OutcomeClass.BUDGET):
        raise DialBackError(
            f"harness={config.harness.kind} took {len(turns)} turns and ended with {result.code}: "
            f"{result.output[-600:]}"
        )
    prompt = len(turns[0].prompt_new) if policy.own else None
    return DialBack(result, len(turns), prompt, seconds, backend.guarantees())


async def probe_engine(config: Config, policy: _Policy, url: str) -> list[Finding]:
    """Try what a run needs of the engine at ``url``."""
    return await probe(
        url,
        workers_of(config.engine),
        context_tokens=config.model.max_context_tokens,
        routing=captured_shape(config, policy.weights),
        language=_language(config, policy) if policy.own else None,
    )


def _language(config: Config, policy: _Policy) -> Language:
    tokenizer = load_tokenizer(policy.tokenizer)
    renderer = make_renderer(tokenizer, config.model.renderer, policy.tokenizer)
    return Language(
        tokenizer,
        renderer,
        config.model.renderer,
        policy.tokenizer,
        tool_call_parser=_parser(config, "tool_call_parser", "tool"),
        reasoning_parser=_parser(config, "reasoning_parser", "reasoning"),
    )


def _parser(config: Config, of_engine: str, of_model: str) -> Parser | None:
    """Return the parser that the run has the servers read with, or the one that the model's table
    names for those of a job.
    """
    name = getattr(config.engine, of_engine, None)
    if name is not None:
        return Parser(f"engine.{of_engine}", name, used=True)
    if isinstance(config.model, MoeModel):
        name = getattr(config.model.parsers, of_model)
        return Parser(f"model.parsers.{of_model}", name, used=False)
    return None


def _policy(config: Config, work: Path) -> _Policy:
    model = config.model
    made = None
    if isinstance(model, TinyModelConfig):
        made = tiny_directory(model, config.scenario.kind)
        made = made if made.is_dir() else None
    weights, tokenizer = model.path or made, model.tokenizer or made
    if tokenizer is not None:
        return _Policy(tokenizer, True, weights)
    stand_in = work / "tokenizer"
    stand_in.mkdir(parents=True)
    save_tokenizer(train_tokenizer((), size=BYTES_ONLY), stand_in)
    return _Policy(stand_in, False, weights)


@asynccontextmanager
async def _gateway(
    config: Config, run_dir: Path, tokenizer: Path, url: str | None
) -> AsyncIterator[dict[str, Any]]:
    """Serve a gateway of its own run in this loop; yields what it announces."""
    RunStore.create(run_dir, {}).close()
    parts = GatewayHooks()
    if url is None:
        reply = load_tokenizer(tokenizer).encode(REPLY)
        url = "http://127.0.0.1:1"
        parts = replace(parts, engine=lambda client, journal: CannedEngine(client, reply))
    settings = gateway_settings(config, run_dir=run_dir, engine_url=url, tokenizer=tokenizer)
    settings["max_context_tokens"] = CONTEXT_TOKENS
    async with serve_inline(settings, parts) as info:
        yield info


class CannedEngine:
    """Answers every prompt alike, in the place of a policy."""

    def __init__(self, client: Engine, reply: list[int]) -> None:
        self._reply = reply
        self.update_weights = client.update_weights
        self.close = client.close

    async def generate(
        self, input_ids: list[int], params: SamplingParams, *, rid: str
    ) -> Generation:
        """Return the reply, ended as the model family ends a turn."""
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

    async def healthy(self) -> bool:
        """Whether it answers: always."""
        return True
