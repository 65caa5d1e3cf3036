"""One session: its chains, its turns in flight, and the sampling that the campaign decided.

Invariants: turns are taken one at a time; a turn is durable before anything of it is answered, and
a generation that was cut off is no turn; a request that was answered before is answered the same
again.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from runners.engines.contract import Engine, EngineError, Generation, SamplingParams
from runners.gateway.chain import Break, Chain, Sent, outline
from runners.gateway.conversation import (
    Answer,
    TurnRequest,
    Unparsed,
    fingerprint,
    read_answer,
    renderer_messages,
)
from runners.gateway.flight import Flight, landed
from runners.gateway.refusal import Refused, Why, engine_refusal
from runners.gateway.tokenizer import ParsedResponse, Renderer, Tokenizer
from runners.gateway.turn_log import Journal
from runners.trajectory.record import Turn

BRANCH = "main"


class Dialect(Protocol):
    """How an answer is said on the wire."""

    def new_message_id(self) -> str:
        """Issue the id of an answer."""
        ...

    def new_call_id(self) -> str:
        """Issue the id of a tool call."""
        ...

    def message(self, answer: Answer, request: TurnRequest, message_id: str) -> dict[str, Any]:
        """Return the body that answers a request."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the policy samples in a session."""

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Services:
    """What every session of a gateway shares."""

    engine: Engine
    tokenizer: Tokenizer
    renderer: Renderer
    journal: Journal
    turn_s: float
    """Deadline of one generation."""


@dataclass(slots=True)
class Counters:
    """What happened in a session; changed by it only."""

    turns: int = 0
    sampled_tokens: int = 0
    malformed_calls: int = 0
    retries: int = 0
    """Requests answered from an earlier or running turn."""
    aborted: int = 0
    """Generations cut off, by a client that left or by the engine."""
    failed: int = 0
    """Generations the engine failed."""
    tools_changed: int = 0
    """Turns whose tools differ from those the chain was rendered with."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Sampling parameters that clients asked for in vain."""
    breaks: list[dict[str, Any]] = field(default_factory=list)
    """Turn and reason of every chain after the first."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """A request, with what recognises it."""

    request: TurnRequest
    sent: list[Sent]
    mark: bytes
    dialect: Dialect


@dataclass(frozen=True, slots=True)
class _Plan:
    """The prompt of a turn."""

    chain: Chain
    """The chain it continues, or a new one."""
    new: int
    """First piece that the chain does not hold."""
    prompt: list[int]
    break_reason: str | None
    after_turn: int
    """How many turns the session had; more of them make the plan stale."""


class Session:
    """A conversation of one rollout attempt."""

    def __init__(
        self,
        session_id: str,
        services: Services,
        sampling: Sampling,
        *,
        max_context_tokens: int,
        seed: int | None,
    ) -> None:
        self.id = session_id
        self.finished = False
        self.counters = Counters()
        self._services = services
        self._sampling = sampling
        self._max_context_tokens = max_context_tokens
        self._seed = seed
        self._chains: list[Chain] = []
        """Least recently used first."""
        self._flights: dict[bytes, Flight] = {}
        self._running: set[Flight] = set()
        self._one_at_a_time = asyncio.Lock()

    def stats(self) -> dict[str, Any]:
        """Return the counters."""
        counted = asdict(self.counters)
        return {
            "session_id": self.id,
            "finished": self.finished,
            "in_flight": len(self._running),
            "branches": {BRANCH: 1} if counted["turns"] else {},
            **counted,
            "ignored": dict(self.counters.ignored),
        }

    def ask(self, request: TurnRequest, dialect: Dialect) -> Flight:
        """Begin a turn, or join the one that answers the same request; raises Refused if there can
        be none.
        """
        ask = self._read(request, dialect)
        running = self._flights.get(ask.mark)
        if running is not None and not running.abandoned:
            self.counters.retries += 1
            return running
        for chain in self._chains:
            if chain.mark == ask.mark:
                self.counters.retries += 1
                return landed(chain.response, chain.prompt_length)
        plan = self._plan(ask)
        flight = Flight(dialect.new_message_id(), len(plan.prompt))
        task = asyncio.get_running_loop().create_task(
            self._turn(flight, ask, plan), name=f"turn-{self.id}"
        )
        task.add_done_callback(lambda _: self._land(flight, ask.mark))
        flight.outcome = task
        self._flights[ask.mark] = flight
        self._running.add(flight)
        self.counters.ignored.update(request.ignored)
        return flight

    def count_tokens(self, request: TurnRequest, dialect: Dialect) -> int:
        """Return how long the prompt of this request would be."""
        return len(self._prompt(self._read(request, dialect)).prompt)

    async def finish(self) -> None:
        """Refuse further turns, abort what is being sampled, wait for the rest to be durable, free
        the tokens.
        """
        self.finished = True
        running = list(self._running)
        for flight in running:
            flight.abort()
        if running:
            await asyncio.wait([flight.outcome for flight in running])
        self._chains.clear()

    def _read(self, request: TurnRequest, dialect: Dialect) -> _Ask:
        if self.finished:
            raise Refused(Why.FORBIDDEN, f"session {self.id} is finished and takes no more turns")
        keys = request.keys()
        sent = outline(request.pieces, keys)
        return _Ask(request, sent, fingerprint(request, keys), dialect)

    def _land(self, flight: Flight, mark: bytes) -> None:
        self._running.discard(flight)
        if self._flights.get(mark) is flight:
            del self._flights[mark]
        if not flight.outcome.cancelled():
            flight.outcome.exception()  # retrieved here, in case that nobody waits any more

    def _plan(self, ask: _Ask) -> _Plan:
        plan, limit = self._prompt(ask), self._max_context_tokens
        if len(plan.prompt) + 1 > limit:
            raise Refused(
                Why.INVALID, f"prompt is too long: {len(plan.prompt)} tokens > {limit} maximum"
            )
        return plan

    def _prompt(self, ask: _Ask) -> _Plan:
        """Continue the chain that this request continues, the most recent first; else render it
        whole.
        """
        renderer, request, turns = self._services.renderer, ask.request, self.counters.turns
        reason: str | None = None
        for chain in reversed(self._chains):
            found = chain.continue_prompt(renderer, request, ask.sent)
            if not isinstance(found, Break):
                return _Plan(chain, *found, None, turns)
            reason = reason or found.reason
        try:
            prompt = renderer.render_ids(
                renderer_messages(request.pieces),
                tools=request.tools or None,
                add_generation_prompt=True,
            )
        except ValueError as error:
            raise Refused(
                Why.INVALID, f"messages: the model's template refuses them: {error}"
            ) from error
        return _Plan(Chain(len(self._chains)), 0, prompt, reason, turns)

    async def _turn(self, flight: Flight, ask: _Ask, plan: _Plan) -> dict[str, Any]:
        asked = time.perf_counter()
        async with self._one_at_a_time:
            if plan.after_turn != self.counters.turns:
                plan = self._plan(ask)
            started_at = time.time()
            generation = await self._generate(ask, plan)
            flight.sampled = True
            parsed = self._parse(ask, plan, generation)
            answer = read_answer(parsed, generation, ask.dialect.new_call_id)
            turn = Turn(
                session_id=self.id,
                index=self.counters.turns,
                branch=BRANCH,
                segment=plan.chain.index,
                prompt_kept=len(plan.chain.tokens),
                prompt_new=np.array(plan.prompt[len(plan.chain.tokens) :], np.int32),
                output_ids=generation.output_ids,
                output_logprobs=generation.logprobs,
                weight_version=generation.weight_version,
                finish_reason=generation.finish_reason,
                break_reason=plan.break_reason,
                malformed_calls=answer.malformed_calls,
                request=_news(ask.request, plan),
                response=ask.dialect.message(answer, ask.request, flight.message_id),
                usage=answer.usage,
                started_at=started_at,
                engine_s=generation.engine_s,
                total_s=time.perf_counter() - asked,
            )
            await self._services.journal.add_turn(turn)
            self._remember(turn, answer, ask, plan)
            return turn.response

    async def _generate(self, ask: _Ask, plan: _Plan) -> Generation:
        """Sample; raises Refused for whatever is no whole generation."""
        services = self._services
        params = SamplingParams(
            max_new_tokens=min(
                self._sampling.max_new_tokens,
                ask.request.max_tokens,
                self._max_context_tokens - len(plan.prompt),
            ),
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            top_k=self._sampling.top_k,
            stop=ask.request.stop,
            stop_token_ids=tuple(services.renderer.get_stop_token_ids()),
            sampling_seed=self._turn_seed(),
        )
        try:
            async with asyncio.timeout(services.turn_s):
                generation = await services.engine.generate(
                    plan.prompt, params, rid=uuid.uuid4().hex
                )
        except EngineError as error:
            self.counters.failed += 1
            raise engine_refusal(error) from error
        except TimeoutError:
            self.counters.failed += 1
            raise Refused(
                Why.OVERLOADED, f"the engine did not answer within {services.turn_s:g} s"
            ) from None
        except asyncio.CancelledError:
            self.counters.aborted += 1
            raise
        if generation.finish_reason == "abort":
            self.counters.aborted += 1
            raise Refused(Why.OVERLOADED, "the engine aborted the generation")
        return generation

    def _turn_seed(self) -> int | None:
        """Derive the seed of the next turn: a retry of a turn that was never taken samples the same
        again.
        """
        if self._seed is None:
            return None
        digest = blake2b(f"{self._seed}:{self.counters.turns}".encode(), digest_size=4).digest()
        return int.from_bytes(digest) >> 1  # 31 bits: what every engine takes for a seed

    def _parse(self, ask: _Ask, plan: _Plan, generation: Generation) -> ParsedResponse:
        ids = generation.output_ids.tolist()
        tools = ask.request.tools or None
        try:
            return self._services.renderer.parse_response(ids, tools=tools, prompt_ids=plan.prompt)
        except (RecursionError, ValueError):  # a policy may say what no JSON parser takes
            return Unparsed(self._services.tokenizer.decode(ids, skip_special_tokens=True))

    def _remember(self, turn: Turn, answer: Answer, ask: _Ask, plan: _Plan) -> None:
        """Take a durable turn into the chain and the counters."""
        chain, counters = plan.chain, self.counters
        if chain in self._chains:
            self._chains.remove(chain)
            counters.tools_changed += chain.tools != ask.request.tools
        self._chains.append(chain)
        news = (sent for sent in ask.sent if sent.first >= plan.new)
        chain.take_in(turn, answer, ask.request, news, ask.mark)
        counters.turns += 1
        counters.sampled_tokens += len(turn.output_ids)
        counters.malformed_calls += turn.malformed_calls
        if turn.break_reason is not None:
            counters.breaks.append({"turn": turn.index, "reason": turn.break_reason})


def _news(request: TurnRequest, plan: _Plan) -> dict[str, Any]:
    """Return what the client sent that the chain did not hold, as it is stored with the turn."""
    news: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "messages": renderer_messages(request.pieces[plan.new :]),
    }
    if request.tools != plan.chain.tools:
        news["tools"] = request.tools
    if request.stop:
        news["stop"] = list(request.stop)
    return news
