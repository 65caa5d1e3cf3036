"""A session: the conversation of one rollout attempt, turn by turn.

Invariants: a thread takes one turn at a time, and the turns of all threads are stored one after the
other; a turn is durable before anything of it is answered, and a generation that was cut off is no
turn; a request that was answered before gets the same answer again.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from conf.sections.gateway import GatewayLimitsConfig
from runners.engines.contract import Conversation, EngineError, Generation, SamplingParams
from runners.engines.resilient import ResilientEngine
from runners.gateway.conversation import (
    Answer,
    Piece,
    TurnRequest,
    group_messages,
    read_answer,
    read_reply,
    sent_pieces,
)
from runners.gateway.dialects.contract import ParsedRequest, ResponseBuilder
from runners.gateway.monitoring.counts import GatewayCounts
from runners.gateway.refusal import (
    PROMPT_TOO_LONG,
    TURNS_SPENT,
    EngineFailed,
    OverLimit,
    RefusalKind,
    Refused,
    refuse_for_engine,
)
from runners.gateway.request_limits import MB, SessionBudget
from runners.gateway.sessions.compaction_watch import CompactionWatch
from runners.gateway.sessions.counters import SessionCounters
from runners.gateway.sessions.in_flight import InFlightTurn, completed_turn
from runners.gateway.sessions.routing_capture import RoutingCapture
from runners.gateway.sessions.service_failures import ServiceFailures
from runners.gateway.sessions.turn_log import AsyncTurnLog
from runners.gateway.sessions.turn_record import count_added, make_turn
from runners.gateway.sessions.turn_seeds import SeedPlace, TurnSeeds
from runners.gateway.sessions.wire_recorder import WireRecorder, WireRequest
from runners.gateway.settings import SessionSampling
from runners.gateway.texts.chat_template import ServerParsers
from runners.gateway.texts.request_cache import RequestCache
from runners.gateway.texts.texts import Texts
from runners.gateway.tree.branches import Branches, Placement
from runners.gateway.tree.prefix_matching import PreparedRequest, prepare_request
from runners.records.record import IdArray, Turn, WireExchange
from runners.records.routing import RoutingShape, TurnRouting
from runners.records.text import shorten
from runners.records.tokenizer import ParsedResponse

logger = logging.getLogger(__name__)

MAX_PREPARED = 8
"""Threads whose last request is kept, to compare the next one only with what is new."""
MAX_IGNORED = 100
"""Names of ignored settings that a session counts apart."""
MAX_LINE = 500
"""Characters of the line of the log that names some."""


@dataclass(frozen=True, slots=True)
class SessionServices:
    """The services that all sessions of a gateway share."""

    engine: ResilientEngine
    texts: Texts
    turn_log: AsyncTurnLog
    limits: GatewayLimitsConfig
    routing: RoutingShape | None = None
    """Shape of the policy's routing; None: it is not captured."""
    output_parser: ServerParsers | None = None
    """Parses what is sampled, where the renderer cannot."""
    compaction_window: int | None = None
    """As ``GatewaySettings.compaction_window``."""
    counts: GatewayCounts = field(default_factory=GatewayCounts)
    """Sums over all sessions."""
    wire_secrets: Sequence[str] | None = None
    """Texts to hide in recorded requests; None: requests are not recorded."""


class Session:
    """A conversation of one rollout attempt; all calls on one event loop."""

    def __init__(
        self,
        session_id: str,
        services: SessionServices,
        sampling: SessionSampling,
        *,
        max_context_tokens: int,
        max_turns: int,
        seed: int | None,
    ) -> None:
        self.id = session_id
        self.finished = False
        self.counters = SessionCounters()
        secrets = services.wire_secrets
        self._wire = None if secrets is None else WireRecorder(secrets)
        self.budget = SessionBudget(services.limits)
        self.failures = ServiceFailures()
        self._services = services
        self._sampling = sampling
        self._max_context_tokens = max_context_tokens
        self._max_turns = max_turns
        self._started = 0
        """Turns taken or in flight."""
        self._seeds = None if seed is None else TurnSeeds(seed)
        self._branches = self._make_branches()
        self._request_cache = RequestCache()
        self._prepared: dict[str, PreparedRequest] = {}
        """The last request of each thread, the latest last."""
        self._prompt_tokens: list[int] = []
        """By turn."""
        self._stored_bytes = 0
        """Size of what clients have added to the history, about."""
        self._by_fingerprint: dict[bytes, InFlightTurn] = {}
        """Turns in flight that a retry can join."""
        self._in_flight: set[InFlightTurn] = set()
        """All of them, abandoned ones too."""
        self._turns_of: Counter[str] = Counter()
        """Turns taken, by thread as the requests name it."""
        self._locks: dict[str, asyncio.Lock] = {}
        """By thread."""
        self._storing = asyncio.Lock()
        self._routing = RoutingCapture(services.routing)
        self._compactions = CompactionWatch(session_id, services.compaction_window)

    @property
    def in_flight(self) -> int:
        """Return the number of turns that are being taken."""
        return len(self._in_flight)

    def stats(self) -> dict[str, Any]:
        """Return the counters, as JSON."""
        return {
            "session_id": self.id,
            "finished": self.finished,
            "in_flight": len(self._in_flight),
            **asdict(self.counters),
            "branches": dict(self.counters.branches),
            "recovered_kinds": dict(self.counters.recovered_kinds),
            "ignored": dict(self.counters.ignored),
            "mechanical": dict(self.counters.mechanical),
            "over_limit": self.budget.over_limit,
            "failed_service": self.failures.latest,
            "routing_missing": self._routing.missing,
            "routing_fault": self._routing.fault,
        }

    async def parse(
        self, path: str, body: Sequence[bytes], headers: Mapping[str, str]
    ) -> ParsedRequest:
        """Parse a request to an endpoint; ``body`` is in pieces. Raises Refused."""
        try:
            return await self._services.texts.parse(
                self.id, path, body, headers, self._max_context_tokens, self._request_cache
            )
        except Refused:
            raise
        except Exception:
            self.failures.add("gateway")
            raise

    def start_turn(
        self, request: TurnRequest, builder: ResponseBuilder, sent: WireRequest | None = None
    ) -> InFlightTurn:
        """Begin a turn, or join the one that answers the same request; ``sent`` is to be recorded.

        Raises Refused if the session is finished or its turns are spent. A prompt that is refused
        ends the turn (``InFlightTurn.wait_until_placed``).
        """
        prepared = self._prepare(request, builder)
        running = self._by_fingerprint.get(prepared.fingerprint)
        if running is not None and not running.abandoned:
            self.counters.retries += 1
            return running
        earlier = self._branches.find_answer(prepared.fingerprint)
        if earlier is not None:
            self.counters.retries += 1
            return completed_turn(*earlier)
        if self._started == self._max_turns:
            self.counters.refused_turns += 1
            raise Refused(RefusalKind.FORBIDDEN, f"{TURNS_SPENT}: {self._max_turns} of them")
        self._check_history(prepared)
        thread = request.attribution.thread
        self._locks.setdefault(thread, asyncio.Lock())
        turn = InFlightTurn(builder.new_message_id())
        # A task of its own, not the HTTP handler's: it must outlive a client that disconnects after
        # the sampling, and several clients can wait for it.
        task = asyncio.get_running_loop().create_task(
            self._run_turn(turn, prepared, builder, sent), name=f"turn-{self.id}"
        )
        task.add_done_callback(lambda _: self._on_turn_done(turn, prepared.fingerprint, thread))
        turn.begin(task)
        self._by_fingerprint[prepared.fingerprint] = turn
        self._in_flight.add(turn)
        self._started += 1
        return turn

    def hold_wire(
        self, path: str, headers: Iterable[tuple[str, str]], body: Sequence[bytes]
    ) -> WireRequest | None:
        """Return what is held of a request until its turn is stored; None: nothing is recorded."""
        if self._wire is None:
            return None
        return self._wire.bound(WireRequest(path, list(headers), body))

    async def count_tokens(self, parsed: ParsedRequest) -> int:
        """Return the number of tokens that the prompt of this request would have."""
        if not self._services.texts.has_ids:
            raise Refused(
                RefusalKind.UNKNOWN,
                "tokens cannot be counted: the model's tokenizer is the endpoint's own",
            )
        prepared = self._prepare(parsed.request, parsed.builder)
        return len((await self._branches.find_placement(prepared)).prompt)

    async def finish(self) -> None:
        """Refuse further turns, abort those that are being sampled, wait until the others are
        durable, free the tokens. Safe to call again.
        """
        self.finished = True
        in_flight = list(self._in_flight)
        for turn in in_flight:
            turn.abort()
        if in_flight:
            await asyncio.wait([turn.outcome for turn in in_flight])
        self._branches, self._request_cache = self._make_branches(), RequestCache()
        self._prepared.clear()

    def _make_branches(self) -> Branches:
        return Branches(self.id, self._services.texts, self.counters.mechanical)

    def _check_history(self, prepared: PreparedRequest) -> None:
        """Raise OverLimit if the session holds as much as it may, or would with this request."""
        limits, thread = self._services.limits, prepared.request.attribution.thread
        if thread not in self._locks and len(self._locks) >= limits.threads:
            what = f"{limits.threads} threads (sub-agents)"
        elif self._branches.pieces + len(prepared.parts) > limits.history_pieces:
            what = f"{limits.history_pieces} pieces of history"
        elif self._stored_bytes > limits.history_mb * MB:
            what = f"{limits.history_mb} MB of history"
        else:
            return
        self.counters.refused_turns += 1
        raise OverLimit(RefusalKind.FORBIDDEN, f"{TURNS_SPENT}: it has {what}")

    def _prepare(self, request: TurnRequest, builder: ResponseBuilder) -> PreparedRequest:
        if self.finished:
            raise Refused(
                RefusalKind.FORBIDDEN, f"session {self.id} is finished and takes no more turns"
            )
        thread = request.attribution.thread
        prepared = prepare_request(request, builder.NAME, self._prepared.pop(thread, None))
        self._prepared[thread] = prepared
        if len(self._prepared) > MAX_PREPARED:
            del self._prepared[next(iter(self._prepared))]
        return prepared

    def _on_turn_done(self, turn: InFlightTurn, fingerprint: bytes, thread: str) -> None:
        self._in_flight.discard(turn)
        if self._by_fingerprint.get(fingerprint) is turn:  # not the retry of one that was abandoned
            del self._by_fingerprint[fingerprint]
        if turn.outcome.cancelled():
            self._started -= 1
            return
        # Reading the exception marks it as retrieved: without it asyncio logs one that was never
        # retrieved whenever all clients had left.
        error = turn.outcome.exception()
        if error is None:
            self.failures.clear(thread)
            return
        self._started -= 1
        if isinstance(error, EngineFailed):
            self.failures.add("engine", thread)
        elif not isinstance(error, Refused):
            self.failures.add("gateway", thread)

    async def _find_placement(self, prepared: PreparedRequest) -> Placement:
        place = await self._branches.find_placement(prepared)
        length, limit = self._known_length(place), self._max_context_tokens
        if length + 1 > limit:
            raise Refused(
                RefusalKind.INVALID, f"{PROMPT_TOO_LONG}: {length} tokens > {limit} maximum"
            )
        return place

    def _known_length(self, place: Placement) -> int:
        """Return the tokens of a prompt; without ids the least that it has: its parent's prompt."""
        if self._services.texts.has_ids:
            return len(place.prompt)
        return self._prompt_tokens[place.parent.node.index] if place.parent else 0

    async def _run_turn(
        self,
        turn: InFlightTurn,
        prepared: PreparedRequest,
        builder: ResponseBuilder,
        sent: WireRequest | None,
    ) -> dict[str, Any]:
        """Place, sample, parse and store a turn; return the body that answers it.

        Raises Refused if the prompt is, before the turn is placed.
        """
        arrived, thread = time.perf_counter(), prepared.request.attribution.thread
        taken = self._turns_of[thread]
        place = await self._find_placement(prepared)
        turn.set_placed(self._known_length(place))
        self._count_ignored(prepared.request)
        async with self._locks[thread]:
            if taken != self._turns_of[thread]:  # another turn came in between
                place = await self._find_placement(prepared)
            with self._reserve_seed(place) as seed:
                return await self._take_turn(turn, prepared, builder, place, seed, arrived, sent)

    async def _take_turn(
        self,
        turn: InFlightTurn,
        prepared: PreparedRequest,
        builder: ResponseBuilder,
        place: Placement,
        seed: SeedPlace | None,
        arrived: float,
        sent: WireRequest | None,
    ) -> dict[str, Any]:
        request, started_at = prepared.request, time.time()
        generation = await self._generate(request, place, seed.seed if seed else None)
        turn.sampled = True
        parsed, retokenizes = await self._parse(request, place.prompt, generation)
        answer = read_answer(parsed, generation, builder.CALL_ID_PREFIX)
        response = builder.build_response(answer, request, turn.message_id)
        # One at a time: index and segment are those of the next turn, and they are taken only when
        # the turn is durable.
        async with self._storing:
            total_s = time.perf_counter() - arrived
            record = self._make_record(place, generation, answer, started_at, total_s)
            routing = self._capture_routing(record, place.prompt, generation)
            # Durable before answered: whoever waits gets ``response`` only after this. If it
            # fails, the branches do not have the turn either, and the client gets an error.
            await self._services.turn_log.add_turn(
                record, routing, partial(self._record_wire, sent, response)
            )
            pieces = sent_pieces(answer.text, builder.sent_calls(answer))
            self._add_turn(record, place, prepared, answer, response, pieces)
            if self._seeds and seed:
                self._seeds.add_turn(seed)
            self.counters.retokenization_mismatches += not retokenizes
        return response

    def _record_wire(
        self, sent: WireRequest | None, response: Mapping[str, Any]
    ) -> WireExchange | None:
        if sent is None or self._wire is None:
            return None
        return self._wire.record(sent, response)

    def _make_record(
        self,
        place: Placement,
        generation: Generation,
        answer: Answer,
        started_at: float,
        total_s: float,
    ) -> Turn:
        return make_turn(
            place,
            generation,
            answer,
            session_id=self.id,
            index=self.counters.turns,
            segment=self._branches.choose_segment(place),
            started_at=started_at,
            total_s=total_s,
        )

    async def _generate(
        self, request: TurnRequest, place: Placement, seed: int | None
    ) -> Generation:
        """Sample; raises Refused unless the engine returns a whole generation."""
        services, prompt, texts = self._services, place.prompt, self._services.texts
        rid = f"{self.id}:{place.branch}:{uuid.uuid4().hex}"  # names the session in engine logs
        params = SamplingParams(
            max_new_tokens=min(
                self._sampling.max_new_tokens,
                request.max_tokens,
                self._max_context_tokens - self._known_length(place),
            ),
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            top_k=self._sampling.top_k,
            stop=request.stop,
            stop_token_ids=texts.stop_token_ids(),
            sampling_seed=seed,
            routing_start=self._routing.first_missing_row(
                place.parent.node.index if place.parent else None
            ),
            conversation=None
            if texts.has_ids
            else Conversation(group_messages(request.pieces, request.tools), request.tools),
        )
        try:
            return await services.engine.generate(prompt, params, rid=rid, counters=self.counters)
        except EngineError as error:
            self.counters.failed += 1
            services.counts.failed += 1
            raise refuse_for_engine(error) from error
        except asyncio.CancelledError:  # ``InFlightTurn.abort``; the engine's client aborts there
            self.counters.aborted += 1
            services.counts.aborted += 1
            raise

    def _reserve_seed(self, place: Placement) -> AbstractContextManager[SeedPlace | None]:
        if self._seeds is None:
            return nullcontext()
        parent = place.parent.node.index if place.parent else None
        known = 0 if parent is None else self._prompt_tokens[parent]
        return self._seeds.reserve(parent, place.prompt[known:])

    async def _parse(
        self, request: TurnRequest, prompt: IdArray, generation: Generation
    ) -> tuple[ParsedResponse, bool]:
        """Return the sampled tokens parsed, and whether their text gives the same tokens."""
        if generation.reply is not None:
            return read_reply(generation.reply), True
        ids, services = generation.output_ids.tolist(), self._services
        read = await services.texts.read_output(self.id, ids, request.tools, prompt)
        if services.output_parser is None:
            return read.parsed, read.retokenizes
        try:
            parsed = await services.output_parser.parse(read.parsed.content, request.tools)
        except EngineError:  # the sampled tokens are kept; the agent gets their text as it is
            self.counters.parser_fallbacks += 1
            parsed = read.parsed
        except (RecursionError, ValueError):  # a policy can write JSON that no parser takes
            parsed = services.texts.read_unparsed(ids)
        return parsed, read.retokenizes

    def _capture_routing(
        self, turn: Turn, prompt: IdArray, generation: Generation
    ) -> TurnRouting | None:
        if self._services.routing is None:
            return None
        path = np.concatenate([prompt, generation.output_ids])
        return self._routing.add_turn(turn, path, generation.routing)

    def _count_ignored(self, request: TurnRequest) -> None:
        """Count the settings that the client asked for; it makes up the names of some of them."""
        ignored = self.counters.ignored
        if request.unknown_keys and not self.counters.unknown_keys:  # once: the others are alike
            names = shorten(", ".join(request.ignored), MAX_LINE)
            logger.warning("session %s: ignored in its requests: %s", self.id, names)
        for name in request.ignored:
            ignored[name if name in ignored or len(ignored) < MAX_IGNORED else "others"] += 1
        self.counters.unknown_keys += request.unknown_keys
        self.counters.replaced_surrogates += request.replaced_surrogates

    def _add_turn(
        self,
        turn: Turn,
        place: Placement,
        prepared: PreparedRequest,
        answer: Answer,
        response: dict[str, Any],
        sent: tuple[Piece, ...],
    ) -> None:
        """Add a durable turn to the branches and the counters."""
        counters, left = self.counters, place.history_break
        self._services.counts.add_turn(turn)
        self._stored_bytes += count_added(prepared.request, place)
        counters.branches[turn.branch] += turn.segment == self._branches.graph.chains
        self._branches.add_turn(turn, place, prepared, answer, response, sent)
        counters.ambiguous += place.name.ambiguous
        self._turns_of[prepared.request.attribution.thread] += 1
        counters.turns += 1
        counters.sampled_tokens += turn.output_tokens
        self._prompt_tokens.append(turn.prompt_tokens)
        counters.malformed_calls += turn.malformed_calls
        counters.recovered_calls += len(answer.recovered)
        counters.recovered_kinds.update(answer.recovered)
        for piece in prepared.request.pieces[place.first_new_piece :]:
            if piece.note:
                counters.ignored[f"content.{piece.note}"] += 1
        counters.tools_changed += place.tools_changed
        counters.forged_controls += place.forged
        counters.edits += left is not None and left.kind == "edit"
        counters.tools_added += left is not None and left.kind == "tools"
        counters.compactions_missed += self._compactions.add_turn(turn)
        if left is not None:
            broken = {"kind": left.kind, "reason": left.reason, "message": left.message}
            where = {"turn": turn.index, "thread": turn.thread}
            counters.breaks.append(where | broken | place.difference)
