"""One session: its branches, its turns in flight, and the sampling that the campaign decided.

Invariants: a thread takes one turn at a time, and the turns of all threads are stored one after the
other; a turn is durable before anything of it is answered, and a generation that was cut off is no
turn; a request that was answered before is answered the same again.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from runners.engines.contract import EngineError, Generation, SamplingParams
from runners.engines.resilient import ResilientEngine
from runners.gateway.attribution import MAIN
from runners.gateway.branches import Branches, Placement
from runners.gateway.chat_template import OutputParser
from runners.gateway.conversation import (
    Answer,
    TurnRequest,
    UnparsedOutput,
    fingerprint,
    group_messages,
    read_answer,
    to_chat_message,
)
from runners.gateway.counters import SessionCounters
from runners.gateway.in_flight import InFlightTurn, completed_turn
from runners.gateway.prefix_matching import RequestPart, split_parts
from runners.gateway.refusal import PROMPT_TOO_LONG, TURNS_SPENT, RefusalKind, Refused, to_refusal
from runners.gateway.response_builder import ResponseBuilder
from runners.gateway.routing import RoutingCapture
from runners.gateway.settings import SessionSampling
from runners.gateway.tokenizer import ParsedResponse, Renderer, Tokenizer
from runners.gateway.turn_log import AsyncTurnLog
from runners.trajectory.record import Turn
from runners.trajectory.routing import RoutingShape


@dataclass(frozen=True, slots=True)
class SessionServices:
    """What every session of a gateway shares."""

    engine: ResilientEngine
    tokenizer: Tokenizer
    renderer: Renderer
    journal: AsyncTurnLog
    routing: RoutingShape | None = None
    """What the policy's routing looks like; None: it is not captured."""
    reader: OutputParser | None = None
    """Reads what is sampled, where the renderer cannot."""


@dataclass(frozen=True, slots=True)
class _PreparedRequest:
    """A request, with what recognises it."""

    request: TurnRequest
    sent: list[RequestPart]
    mark: bytes
    voice: ResponseBuilder


@dataclass(frozen=True, slots=True)
class _TurnPlan:
    """Where a turn belongs."""

    place: Placement
    after_turn: int
    """How many turns its thread had; more of them make the plan stale."""


class Session:
    """A conversation of one rollout attempt."""

    def __init__(
        self,
        session_id: str,
        services: SessionServices,
        sampling: SessionSampling,
        *,
        max_context_tokens: int,
        max_turns: int | None,
        seed: int | None,
    ) -> None:
        self.id = session_id
        self.finished = False
        self.counters = SessionCounters()
        self._services = services
        self._sampling = sampling
        self._max_context_tokens = max_context_tokens
        self._max_turns = max_turns
        self._begun = 0
        """Turns taken or in flight."""
        self._seed = seed
        self._branches = Branches(services.renderer, services.tokenizer)
        self._flights: dict[bytes, InFlightTurn] = {}
        self._running: set[InFlightTurn] = set()
        self._turns_of: Counter[str] = Counter()
        """Turns taken, by thread."""
        self._locks: dict[str, asyncio.Lock] = {}
        """By thread, in order of appearance."""
        self._storing = asyncio.Lock()
        self._routing = RoutingCapture(services.routing)

    def stats(self) -> dict[str, Any]:
        """Return the counters."""
        counted = asdict(self.counters)
        return {
            "session_id": self.id,
            "finished": self.finished,
            "in_flight": len(self._running),
            **counted,
            "branches": dict(self.counters.branches),
            "ignored": dict(self.counters.ignored),
            "routing_missing": self._routing.missing,
            "routing_fault": self._routing.fault,
        }

    def start_turn(self, request: TurnRequest, voice: ResponseBuilder) -> InFlightTurn:
        """Begin a turn, or join the one that answers the same request; raises Refused if there can
        be none.
        """
        ask = self._prepare(request, voice)
        running = self._flights.get(ask.mark)
        if running is not None and not running.abandoned:
            self.counters.retries += 1
            return running
        earlier = self._branches.find_answer(ask.mark)
        if earlier is not None:
            self.counters.retries += 1
            return completed_turn(*earlier)
        if self._begun == self._max_turns:
            raise Refused(RefusalKind.FORBIDDEN, f"{TURNS_SPENT}: {self._max_turns} of them")
        plan = self._plan(ask)
        flight = InFlightTurn(voice.new_message_id(), len(plan.place.prompt))
        task = asyncio.get_running_loop().create_task(
            self._run_turn(flight, ask, plan), name=f"turn-{self.id}"
        )
        task.add_done_callback(lambda _: self._on_turn_done(flight, ask.mark))
        flight.outcome = task
        self._flights[ask.mark] = flight
        self._running.add(flight)
        self._begun += 1
        self.counters.ignored.update(request.ignored)
        return flight

    def count_tokens(self, request: TurnRequest, voice: ResponseBuilder) -> int:
        """Return how long the prompt of this request would be."""
        ask = self._prepare(request, voice)
        return len(self._branches.find_placement(request, ask.sent).prompt)

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
        self._branches = Branches(self._services.renderer, self._services.tokenizer)

    def _prepare(self, request: TurnRequest, voice: ResponseBuilder) -> _PreparedRequest:
        if self.finished:
            raise Refused(
                RefusalKind.FORBIDDEN, f"session {self.id} is finished and takes no more turns"
            )
        keys = request.keys()
        sent = split_parts(request.pieces, keys)
        return _PreparedRequest(request, sent, fingerprint(request, keys, voice.NAME), voice)

    def _on_turn_done(self, flight: InFlightTurn, mark: bytes) -> None:
        self._running.discard(flight)
        if self._flights.get(mark) is flight:
            del self._flights[mark]
        # retrieved here, in case that nobody waits any more
        if flight.outcome.cancelled() or flight.outcome.exception() is not None:
            self._begun -= 1

    def _plan(self, ask: _PreparedRequest) -> _TurnPlan:
        place = self._branches.find_placement(ask.request, ask.sent)
        length, limit = len(place.prompt), self._max_context_tokens
        if length + 1 > limit:
            raise Refused(
                RefusalKind.INVALID, f"{PROMPT_TOO_LONG}: {length} tokens > {limit} maximum"
            )
        return _TurnPlan(place, self._turns_of[ask.request.hints.thread])

    async def _run_turn(
        self, flight: InFlightTurn, ask: _PreparedRequest, plan: _TurnPlan
    ) -> dict[str, Any]:
        asked, thread = time.perf_counter(), ask.request.hints.thread
        async with self._locks.setdefault(thread, asyncio.Lock()):
            if plan.after_turn != self._turns_of[thread]:
                plan = self._plan(ask)
            place, started_at = plan.place, time.time()
            generation = await self._generate(ask, place)
            flight.sampled = True
            parsed = await self._parse(ask, place.prompt, generation)
            answer = read_answer(parsed, generation, ask.voice.new_call_id)
            response = ask.voice.message(answer, ask.request, flight.message_id)
            kept = place.after.node.length if place.after else 0
            async with self._storing:
                turn = Turn(
                    session_id=self.id,
                    index=self.counters.turns,
                    thread=place.thread,
                    parent_thread=place.parent_thread,
                    branch=place.branch,
                    segment=self._branches.choose_segment(place),
                    parent=place.after.node.index if place.after else None,
                    prompt_kept=kept,
                    prompt_new=np.array(place.prompt[kept:], np.int32),
                    output_ids=generation.output_ids,
                    output_logprobs=generation.logprobs,
                    weight_version=generation.weight_version,
                    finish_reason=generation.finish_reason,
                    break_reason=f"{place.why.kind}: {place.why.reason}" if place.why else None,
                    malformed_calls=answer.malformed_calls,
                    request=_stored_request(ask.request, place),
                    reply=to_chat_message(answer),
                    usage=answer.usage,
                    started_at=started_at,
                    engine_s=generation.engine_s,
                    total_s=time.perf_counter() - asked,
                )
                path = [*place.prompt, *generation.output_ids.tolist()]
                routing = self._routing.add_turn(turn, path, generation.routing)
                await self._services.journal.add_turn(turn, routing)
                self._add_turn(turn, answer, ask, place, response)
            return response

    async def _generate(self, ask: _PreparedRequest, place: Placement) -> Generation:
        """Sample; raises Refused for whatever is no whole generation."""
        services, prompt = self._services, place.prompt
        rid = f"{self.id}:{place.branch}:{uuid.uuid4().hex}"  # says to the engine's log whose it is
        params = SamplingParams(
            max_new_tokens=min(
                self._sampling.max_new_tokens,
                ask.request.max_tokens,
                self._max_context_tokens - len(prompt),
            ),
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            top_k=self._sampling.top_k,
            stop=ask.request.stop,
            stop_token_ids=tuple(services.renderer.get_stop_token_ids()),
            sampling_seed=self._turn_seed(ask.request.hints.thread),
            routing_start=self._routing.first_missing_row(
                place.after.node.index if place.after else None
            ),
        )
        try:
            return await services.engine.generate(prompt, params, rid=rid, counters=self.counters)
        except EngineError as error:
            self.counters.failed += 1
            raise to_refusal(error) from error
        except asyncio.CancelledError:
            self.counters.aborted += 1
            raise

    def _turn_seed(self, thread: str) -> int | None:
        """Derive the seed of a thread's next turn: a retry of a turn that was never taken samples
        the same again. Threads count in order of their first requests; how they interleave after
        that decides nothing.
        """
        if self._seed is None:
            return None
        number = 0 if thread == MAIN else 1 + list(self._locks).index(thread)
        name = f"{self._seed}:{number}:{self._turns_of[thread]}"
        digest = blake2b(name.encode(), digest_size=4).digest()
        return int.from_bytes(digest) >> 1  # 31 bits: what every engine takes for a seed

    async def _parse(
        self, ask: _PreparedRequest, prompt: list[int], generation: Generation
    ) -> ParsedResponse:
        ids, services = generation.output_ids.tolist(), self._services
        tools = ask.request.tools or None
        try:
            parsed = services.renderer.parse_response(ids, tools=tools, prompt_ids=prompt)
            if services.reader is not None:
                parsed = await services.reader.read(parsed.content, ask.request.tools)
            return parsed
        except EngineError:  # what was sampled is kept: the agent may judge the words themselves
            self.counters.parser_fallbacks += 1
            return parsed
        except (RecursionError, ValueError):  # a policy may say what no JSON parser takes
            return UnparsedOutput(services.tokenizer.decode(ids, skip_special_tokens=True))

    def _add_turn(
        self,
        turn: Turn,
        answer: Answer,
        ask: _PreparedRequest,
        place: Placement,
        response: dict[str, Any],
    ) -> None:
        """Take a durable turn into the branches and the counters."""
        counters, request = self.counters, ask.request
        counters.branches[turn.branch] += turn.segment == self._branches.graph.chains
        news = [sent for sent in ask.sent if sent.first >= place.new]
        self._branches.add_turn(turn, place, news, answer, request.tools, ask.mark, response)
        counters.ambiguous += place.ambiguous
        self._turns_of[request.hints.thread] += 1
        counters.turns += 1
        counters.sampled_tokens += len(turn.output_ids)
        counters.malformed_calls += turn.malformed_calls
        counters.tools_changed += place.tools_changed
        counters.retokenization_mismatches += not self._retokenizes_exactly(
            turn.output_ids.tolist()
        )
        if place.why is not None:
            why = asdict(place.why) | place.differs
            counters.breaks.append({"turn": turn.index, "thread": turn.thread, **why})

    def _retokenizes_exactly(self, ids: list[int]) -> bool:
        """Whether decoding and encoding gives the same tokens."""
        tokenizer = self._services.tokenizer
        return tokenizer.encode(tokenizer.decode(ids)) == ids


def _stored_request(request: TurnRequest, place: Placement) -> dict[str, Any]:
    """Return what the client sent that the turn before did not have, as it is stored."""
    news: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "messages": group_messages(request.pieces[place.new :]),
    }
    if place.after is None or place.tools_changed:
        news["tools"] = request.tools
    if request.hints.agent_type:
        news["agent_type"] = request.hints.agent_type
    if request.stop:
        news["stop"] = list(request.stop)
    return news
