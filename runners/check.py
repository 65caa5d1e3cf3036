"""One turn of the agent program, before a run: sandbox → gateway → reply, all as a rollout has it.

With ``engine=embedded``, whose policy may not be made yet, the reply is canned; an engine that runs
already is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from conf import schema
from conf.errors import AgentrlError, ExitCode
from runners.engines.contract import Engine, Generation, SamplingParams
from runners.gateway.chat_template import make_renderer
from runners.gateway.client import GatewayAdmin
from runners.gateway.inline import serving
from runners.gateway.service import Parts
from runners.gateway.tokenizer import load_tokenizer
from runners.harnesses.contract import HarnessContext, HarnessResult
from runners.harnesses.registry import make_harness
from runners.outcome import OutcomeClass
from runners.probe import Finding, Wanted, probe
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxSpec
from runners.stack import captured_shape, gateway_settings
from runners.training.bootstrap.tiny import tiny_directory
from runners.training.bootstrap.vocabulary import BYTES_ONLY, save_tokenizer, train_tokenizer
from runners.trajectory.store import RunStore

TASK = "Answer with one word. Call no tool."
REPLY = "Hello"
CONTEXT_TOKENS = 1 << 20
"""Room for any first prompt: how long it is, is what the check finds out."""
SESSION = "check"


class DialBackError(AgentrlError):
    """The agent program did not take its turn."""

    exit_code = ExitCode.PREFLIGHT


class EngineUnfit(AgentrlError):
    """The engine cannot do what a run needs."""

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


async def dial_back(config: schema.Config, work: Path) -> DialBack:
    """Let the agent program of ``config`` take a turn; files go below ``work``.

    Raises AgentrlError if it cannot, DialBackError if it does not.
    """
    harness = make_harness(config.harness, config.scenario)
    tokenizer, own = _tokenizer(config, work)
    source = work / "source"
    source.mkdir(parents=True)
    async with AsyncExitStack() as exits:
        backend = await asyncio.to_thread(make_backend, config.sandbox, work / "sandboxes")
        exits.push_async_callback(backend.close)
        gateway = await exits.enter_async_context(_gateway(config, work / "run", tokenizer))
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
    prompt = len(turns[0].prompt_new) if own else None
    return DialBack(result, len(turns), prompt, seconds, backend.guarantees())


async def probe_engine(config: schema.Config) -> list[Finding]:
    """Try what a run needs of an engine that runs already; nothing for one that a run starts, or
    without the model's tokenizer.
    """
    engine, directory = config.engine, config.model.tokenizer
    if not isinstance(engine, schema.SglangEngine) or directory is None:
        return []
    tokenizer = load_tokenizer(directory)
    wanted = Wanted(
        tokenizer=tokenizer,
        renderer=make_renderer(tokenizer, config.model.renderer, directory),
        context_tokens=config.model.max_context_tokens,
        routing=captured_shape(config, config.model.path),
        tool_call_parser=engine.tool_call_parser,
    )
    return await probe(engine.url, engine.workers, wanted)


def refuse_trouble(findings: Iterable[Finding]) -> None:
    """Raise EngineUnfit with everything that the engine cannot do, if there is anything."""
    trouble = [f"engine: {f.name}: {f.detail}" for f in findings if not f.ok]
    if trouble:
        raise EngineUnfit("\n".join(trouble))


def _tokenizer(config: schema.Config, work: Path) -> tuple[Path, bool]:
    """Return the model's tokenizer if it is there, else one of bytes; and whether it is its own."""
    model = config.model
    if model.tokenizer is not None:
        return model.tokenizer, True
    if isinstance(model, schema.TinyModel):
        made = tiny_directory(model, config.scenario.kind)
        if made.is_dir():
            return made, True
    stand_in = work / "tokenizer"
    stand_in.mkdir(parents=True)
    save_tokenizer(train_tokenizer((), size=BYTES_ONLY), stand_in)
    return stand_in, False


@asynccontextmanager
async def _gateway(
    config: schema.Config, run_dir: Path, tokenizer: Path
) -> AsyncIterator[dict[str, Any]]:
    """Serve a gateway of its own run in this loop; yields what it announces."""
    RunStore.create(run_dir, {}).close()
    engine, parts = config.engine, Parts()
    if not isinstance(engine, schema.SglangEngine):
        reply = load_tokenizer(tokenizer).encode(REPLY)
        url = "http://127.0.0.1:1"
        parts = replace(parts, engine=lambda client, journal: CannedEngine(client, reply))
    else:
        url = engine.url
    settings = gateway_settings(config, run_dir=run_dir, engine_url=url, tokenizer=tokenizer)
    settings["max_context_tokens"] = CONTEXT_TOKENS
    async with serving(settings, parts) as info:
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
