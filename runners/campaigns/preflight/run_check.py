"""Check a run before it starts: its engine, one turn of its agent program, and its summaries.

A server of ``engine=sglang_launch`` is started for the check and stopped after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from conf.errors import AgentrlError, ExitCode
from conf.lora import find_served_lora
from conf.schema import Config
from conf.sections.cluster_model import ClusterModel
from conf.sections.engine import EmbeddedEngineConfig, FixedEngineConfig
from conf.sections.harness import name_program
from conf.sections.model import EndpointModelConfig, TinyModelConfig
from conf.sections.scenario import compaction_window
from runners.campaigns.preflight.tokenizer_check import PolicyFormat, ServerParser, probe_server
from runners.engines.contract import (
    Engine,
    Generation,
    SamplingParams,
    TextCall,
    TextReply,
    TokenIds,
)
from runners.engines.fixed_engines import check_fixed_engine
from runners.engines.server_check import CheckResult, raise_on_failures
from runners.gateway.client import GatewayAdmin
from runners.gateway.service import NO_HOOKS, GatewayHooks, serve_inline
from runners.gateway.settings import GatewaySettings
from runners.gateway.texts.chat_template import make_renderer
from runners.records.checkpoints import find_given_files, find_shipped_policy
from runners.records.outcome import OutcomeClass
from runners.records.record import Turn
from runners.records.store import RunStore
from runners.records.tokenizer import load_tokenizer
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.rollouts.harnesses.registry import install_harness, make_harness
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxSpec
from runners.services.engine_service import list_workers, start_engine
from runners.services.policy import find_captured_shape
from runners.system.processes import ServiceStarter

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


CALL = TextCall("Probe", {}, "")
"""Of a tool that no program has: each answers it with an error, and goes on."""
CALLS = 2
"""Claude Code sums up nothing before its second turn."""
BEYOND = 1.1
"""Reported usage, in windows: Claude Code gives up at some 33,000 tokens more."""


async def check_compaction(config: Config, policy: PolicyFiles, work: Path) -> None:
    """Raise AgentTurnError if the program goes on beyond the window of its scenario.

    Files are written below ``work``. Nothing is tried of scenarios without summaries, nor with a
    model whose tokenizer is the endpoint's own.
    """
    window = compaction_window(config.scenario)
    if window is None or isinstance(config.model, EndpointModelConfig):
        return

    def make_engine(client: Engine, reply: list[int]) -> Engine:
        return OutgrowingEngine(client, reply, int(BEYOND * window))

    run = await run_agent(config, policy, work, None, make_engine)
    if any(turn.branch == "compaction" for turn in run.turns):
        return
    version = getattr(config.harness, "version", "")
    raise AgentTurnError(
        f"harness={name_program(config.harness)} {version} did not sum up its history at "
        f"scenario.window_tokens={window} ({len(run.turns)} turns, {run.result.code}): old "
        "versions ignore the window; choose another harness.version, or scenario=linear"
    )


class OutgrowingEngine(CannedEngine):
    """An ``Engine`` whose first answers call a tool and report a usage beyond the window."""

    def __init__(self, client: Engine, reply: list[int], prompt_tokens: int) -> None:
        super().__init__(client, reply)
        self._prompt_tokens = prompt_tokens
        self._calls = CALLS

    async def generate(
        self, input_ids: TokenIds, params: SamplingParams, *, rid: str
    ) -> Generation:
        """Return the call as often as it is wanted, then the canned reply."""
        generation = await super().generate(input_ids, params, rid=rid)
        if not self._calls:
            return generation
        self._calls -= 1
        called = TextReply("I look.", "", (CALL,), 1)
        return replace(generation, prompt_tokens=self._prompt_tokens, reply=called)


EngineReport = list[CheckResult]
"""Questions to the engine, with their answers."""


def install_programs(
    configs: Iterable[Config], *, show: Callable[[str], None]
) -> list[AgentrlError]:
    """Install the agent programs of ``configs`` that are missing; return what went wrong.

    ``show`` is told which program is looked for.
    """
    errors: list[AgentrlError] = []
    for harness in dict.fromkeys(config.harness for config in configs):
        show(f"{name_program(harness)}: looking for the program…")
        try:
            install_harness(harness)
        except AgentrlError as error:
            errors.append(error)
    return errors


async def check_run(
    config: Config, work: Path, *, report: Callable[[EngineReport], None]
) -> tuple[EngineReport, AgentTurn]:
    """Check the engine, pass the results to ``report``, then let the agent program take a turn, and
    sum up its history if the scenario wants that.

    Files are written below ``work``. Raises AgentrlError for whatever stops a run: EngineUnfit,
    AgentTurnError.
    """
    policy = find_policy_files(config)
    async with AsyncExitStack() as exits:
        url = None
        if not isinstance(config.engine, EmbeddedEngineConfig):
            # nobody watches for its early end: the next check finds it
            starter = ServiceStarter(work, exits, on_exit=lambda error: None)
            url = await start_engine(
                config,
                starter,
                policy.weights,
                policy.tokenizer,
                0,
                with_adapters=config.run.steps > 0,
            )
        results = [] if url is None else await check_engine(config, policy, url)
        report(results)
        raise_on_failures(results)
        found = await take_agent_turn(config, policy, work / "turn", url)
    await check_compaction(config, policy, work / "compaction")
    return results, found


async def check_engine(config: Config, policy: PolicyFiles, url: str) -> EngineReport:
    """Check everything that a run of ``config`` needs of the engine at ``url``."""
    if isinstance(config.engine, FixedEngineConfig):
        return await check_fixed_engine(config, config.engine)
    return await probe_server(
        url,
        list_workers(config.engine),
        context_tokens=config.model.max_context_tokens,
        routing=find_captured_shape(config, policy.weights),
        policy_format=_load_policy_format(config, policy) if policy.own else None,
        lora=find_served_lora(config) if config.run.steps else None,
    )


def _load_policy_format(config: Config, policy: PolicyFiles) -> PolicyFormat:
    assert policy.tokenizer is not None
    tokenizer = load_tokenizer(policy.tokenizer)
    renderer = make_renderer(tokenizer, config.model.renderer, policy.tokenizer)
    return PolicyFormat(
        tokenizer,
        renderer,
        config.model.renderer,
        policy.tokenizer,
        tool_call_parser=_find_parser(config, "tool_call_parser", "tool"),
        reasoning_parser=_find_parser(config, "reasoning_parser", "reasoning"),
    )


def _find_parser(config: Config, engine_key: str, model_key: str) -> ServerParser | None:
    """Return the parser that this run uses at its servers, else the one that the model's table
    names for the servers of a job on a cluster.
    """
    name = getattr(config.engine, engine_key, None)
    if name is not None:
        return ServerParser(f"engine.{engine_key}", name, used=True)
    if isinstance(config.model, ClusterModel):
        name = getattr(config.model.parsers, model_key)
        if name is not None:
            return ServerParser(f"model.parsers.{model_key}", name, used=False)
    return None
