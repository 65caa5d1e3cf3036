"""Declare the boundaries of a run: calls of its parts, and what is special about a fault there.

Invariant: without a plan each function returns the part itself. ``README.md`` has the same table.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from conf.errors import ExitCode
from conf.fault_table import Boundary, FaultKind
from runners.engines.client import UPDATE_PATH, HttpEngine
from runners.engines.connection import PUSHED_BACK_STATUS, RETRYABLE_STATUS
from runners.engines.contract import Engine, EngineError, Generation
from runners.gateway.client import GatewayAdmin
from runners.gateway.refusal import GatewayError
from runners.observe.figures import MetricsWriter
from runners.records.store import RunStore, StoreError, to_store_error
from runners.sandboxes.contract import CommandResult, Sandbox, SandboxBackend, SandboxError
from runners.sandboxes.wrappers import ForwardingSandbox
from runners.services.faults.plan import Fault, Injection, parse_attempt
from runners.services.faults.proxy import Arguments, Call, Effect, Proceed, change_reply, wrap
from runners.services.faults.tools_inside import GARBAGE
from runners.tasks.contract import Verdict, VerdictKind

if TYPE_CHECKING:  # a gateway on its own grades nothing
    from runners.tasks.grading import Grader

CountTurns = Callable[[str], Awaitable[int]]
"""Returns the number of durable turns of a session."""
POLL_S = 0.05
"""Between two counts of a session's turns."""
BRANCHES: dict[str, Boundary] = {"subagent": "subagent", "compaction": "compaction"}
"""Branches of a session that are boundaries of their own; their calls hit ``turn`` too."""

# --- gateway -----------------------------------------------------------------------------------


def gateway_error(fault: Fault) -> GatewayError:
    """Return the error of the gateway's client."""
    return GatewayError(str(fault), status=fault.status)


def wrap_gateway(real: GatewayAdmin, injection: Injection) -> GatewayAdmin:
    """Wrap the client of the gateway's admin API."""

    def draw(where: Boundary) -> Callable[[Arguments], Fault | None]:
        return lambda call: injection.draw(where, call["session_id"] or "")

    calls = {
        "create_session": Call(draw("session")),
        "finish": Call(draw("finish"), {"garbage": change_reply(lambda reply: {})}),
        "delete": Call(draw("teardown"), shape="fail after"),
    }
    return wrap(real, injection, gateway_error, calls)


# --- engine ------------------------------------------------------------------------------------


def engine_error(fault: Fault) -> EngineError:
    """Return the error of the engine's client."""
    if fault.what == "garbage":
        return EngineError(f"unreadable answer: {fault}", status=200)
    return EngineError(
        str(fault),
        status=fault.status,
        retryable=fault.status is None or fault.status in RETRYABLE_STATUS,
        pushed_back=fault.status in PUSHED_BACK_STATUS,
    )


def wrap_engine(real: Engine, injection: Injection) -> Engine:
    """Wrap a gateway's engine; each attempt of a model call is a hit.

    Its ``rid`` begins with ``SESSION:BRANCH:``, which says whose turn it is.
    """

    def draw(call: Arguments) -> Fault | None:
        session_id, branch, *_ = f"{call['rid']}::".split(":")
        own = BRANCHES.get(branch)
        faults = [injection.draw(where, session_id) for where in (own, "turn") if where]
        fault = next((fault for fault in faults if fault is not None), None)
        # the driver or worker that has the sandbox foresees the same death, and injects it
        return None if fault is None or fault.what == "death" else fault

    effects: dict[FaultKind, Effect] = {
        "abort": change_reply(_abort_halfway),
        "weight_update": change_reply(_raise_version),
        "disconnect": _drop_client,
    }
    return wrap(real, injection, engine_error, {"generate": Call(draw, effects)})


def wrap_updates(real: HttpEngine, injection: Injection) -> HttpEngine:
    """Wrap the driver's client of an engine; each attempt of a weight update is a hit.

    Its fault is at the connection, so the client's own deadline and retries are what meets it.
    """

    def draw(call: Arguments) -> Fault | None:
        if call["path"] != UPDATE_PATH:
            return None
        version = int(orjson.loads(call["body"])["weight_version"])
        return injection.draw("weights", f"weights-{version:06d}")

    connection = wrap(real.connection, injection, engine_error, {"request": Call(draw)})
    return real if connection is real.connection else real.with_connection(connection)


def _abort_halfway(generation: Generation) -> Generation:
    """Return the first half of a generation, as an engine returns what it had."""
    half = len(generation.output_ids) // 2
    return replace(
        generation,
        output_ids=generation.output_ids[:half],
        logprobs=generation.logprobs[:half],
        finish_reason="abort",
        matched=None,
    )


def _raise_version(generation: Generation) -> Generation:
    return replace(generation, weight_version=generation.weight_version + 1)


_request: ContextVar[web.BaseRequest | None] = ContextVar("request", default=None)
"""The request that the running turn answers: a turn's task inherits it from the handler."""


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def note_request(answer: Handler) -> Handler:
    """Wrap a gateway's handler so that a fault of a turn finds the connection of its client."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        _request.set(request)
        return await answer(request)

    return handle


async def _drop_client(fault: Fault, call: Arguments, proceed: Proceed) -> Any:
    """Cut the connection of the client whose turn this is, as if the client had gone away."""
    request = _request.get()
    if request is not None and request.transport is not None:
        request.transport.abort()
    return await proceed()


# --- sandboxes and graders ---------------------------------------------------------------------


def sandbox_error(fault: Fault) -> SandboxError:
    """Return the sandboxes' own error."""
    full = "the workspace does not fit: no space left on device; "
    text = f"{full if fault.what == 'disk_full' else ''}{fault}"
    return SandboxError(text, pushed_back=fault.status in PUSHED_BACK_STATUS)


def wrap_backend(
    real: SandboxBackend, injection: Injection, count_turns: CountTurns
) -> SandboxBackend:
    """Wrap a backend and the sandboxes that it makes.

    A grader's sandbox (one without network) meets only the fault that its ``grade`` left pending.
    """

    def draw(call: Arguments) -> Fault | None:
        spec = call["spec"]
        return None if spec.network == "none" else injection.draw("sandbox_boot", spec.known_as)

    adapt = partial(_wrap_sandbox, injection=injection, count_turns=count_turns)
    return wrap(real, injection, sandbox_error, {"create": Call(draw, adapt=adapt)})


def _wrap_sandbox(real: Sandbox, injection: Injection, count_turns: CountTurns) -> Sandbox:
    name, grading = real.spec.known_as, real.spec.network == "none"
    sandbox = LosableSandbox(real, injection, None if grading else count_turns)
    pending = injection.pending.pop(name, None)

    def draw(where: Boundary) -> Callable[[Arguments], Fault | None]:
        return lambda call: None if grading else injection.draw(where, name)

    def draw_exec(call: Arguments) -> Fault | None:
        nonlocal pending
        fault, pending = pending, None
        return fault if grading else injection.draw("exec", name)

    effects: dict[FaultKind, Effect] = {
        "death": sandbox.die_during,
        "garbage": change_reply(_garble),
    }
    calls = {
        "run": Call(draw_exec, effects, guard=sandbox.check_alive),
        "on_host": Call(draw("patch"), guard=sandbox.check_alive, shape="enter"),
        "run_check": Call(lambda call: None, guard=sandbox.check_alive),
        "close": Call(draw("teardown"), shape="fail after"),
    }
    return wrap(sandbox, injection, sandbox_error, calls)


def _garble(result: CommandResult) -> CommandResult:
    return replace(result, stdout=GARBAGE, stderr=GARBAGE, exit_code=0, timed_out=False)


class LosableSandbox(ForwardingSandbox):
    """A sandbox that can be lost, with everything in it, while a command runs."""

    def __init__(self, real: Sandbox, injection: Injection, count_turns: CountTurns | None) -> None:
        """``count_turns``: it may also die after a turn of its session, as the plan says."""
        super().__init__(real)
        self._injection = injection
        self._count_turns = count_turns
        self._next_death: Fault | None = None
        self._lost: Fault | None = None

    def check_alive(self) -> None:
        """Raise SandboxError if it is lost."""
        if self._lost is not None:
            raise SandboxError(f"sandbox {self.spec.name} is lost: {self._lost}")

    async def die_during(self, fault: Fault, call: Arguments, proceed: Proceed) -> Any:
        """Make the call, a ``run``, and die ``fault.seconds`` after its start (an ``Effect``)."""
        self._next_death = fault
        return await proceed()

    async def run(self, argv: list[str], **options: Any) -> CommandResult:
        """Run a command until it ends or the sandbox dies."""
        fault, self._next_death = self._next_death or self._foresee_death(), None
        running = self.real.run(argv, **options)
        return await (running if fault is None else self._run_until(fault, running))

    def _foresee_death(self) -> Fault | None:
        """Return the death after a turn that is planned for this attempt."""
        if self._count_turns is None:
            return None
        rollout_id, attempt = parse_attempt(self.spec.known_as)
        deaths = self._injection.plan.foresee("turn", rollout_id, attempt, what="death")
        return deaths[min(deaths)] if deaths else None

    async def _run_until(self, fault: Fault, running: Awaitable[CommandResult]) -> CommandResult:
        work = asyncio.ensure_future(running)
        death = asyncio.ensure_future(self._wait_for_death(fault))
        try:
            await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                death.result()
                self._lost = fault
                if fault.where == "turn":  # the others were recorded when they were drawn
                    await self._injection.record(fault)
                await self.real.close()
        finally:
            for task in (work, death):
                task.cancel()
            await asyncio.wait({work, death})
        self.check_alive()
        return work.result()

    async def _wait_for_death(self, fault: Fault) -> None:
        if fault.where == "turn" and self._count_turns is not None:
            while await self._count_turns(self.spec.known_as) < fault.k:
                await asyncio.sleep(POLL_S)
        await asyncio.sleep(fault.seconds)


class GraderCrash(Exception):
    """An exception that no grader raises: graders have no error of their own."""


def wrap_grader(real: Grader, injection: Injection) -> Grader:
    """Wrap a grader whose sandboxes come from a backend of ``wrap_backend``."""

    async def fail(fault: Fault, call: Arguments, proceed: Proceed) -> Verdict:
        """Return the verdict by which a grader reports its own failure."""
        failing, passing = len(call["task"].fail_to_pass), len(call["task"].pass_to_pass)
        return Verdict(VerdictKind.INFRA, 0, failing, 0, passing, str(fault), "", 0.0)

    async def leave_pending(fault: Fault, call: Arguments, proceed: Proceed) -> Any:
        """Leave the fault to the grader's sandbox, if it makes one."""
        injection.pending[call["name"]] = fault
        try:
            return await proceed()
        finally:
            injection.pending.pop(call["name"], None)

    effects: dict[FaultKind, Effect] = {
        "error": fail,
        "death": leave_pending,
        "garbage": leave_pending,
    }
    grade = Call(
        lambda call: injection.draw("grade", call["name"]),
        effects,
        deferred=frozenset({"death", "garbage"}),
    )
    # The agent's own sandbox is graded: there is no other one that could be lost.
    in_place = replace(grade, effects=dict.fromkeys(effects, fail), deferred=frozenset())
    calls = {"grade": grade, "grade_end_state": in_place}
    return wrap(real, injection, lambda fault: GraderCrash(str(fault)), calls)


# --- the driver's writes -----------------------------------------------------------------------


def wrap_store(real: RunStore, injection: Injection) -> RunStore:
    """Wrap the store of rollouts: a record hits ``store``, and ``deliver`` when it counts."""

    def draw(call: Arguments) -> Fault | None:
        record = call["record"]
        return injection.draw("deliver" if record.counts else "store", record.session_id)

    error = partial(_disk_error, real.run_dir)
    return wrap(real, injection, error, {"put_rollout": Call(draw, shape="write")})


def wrap_metrics(real: MetricsWriter, injection: Injection, run_dir: Path) -> MetricsWriter:
    """Wrap the writer of a run's metrics; a step takes the place of a rollout."""

    def draw(call: Arguments) -> Fault | None:
        return injection.draw("dump", f"step-{call['metrics']['step']:06d}")

    calls = {
        "write": Call(draw, shape="write"),
        "rewrite": Call(lambda call: injection.draw("dump", "metrics"), shape="write"),
    }
    return wrap(real, injection, partial(_disk_error, run_dir), calls)


def _disk_error(path: Path, fault: Fault) -> StoreError:
    if fault.what == "disk_full":
        return to_store_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), path)
    return StoreError(f"the disk failed: {fault}", ExitCode.SERVICE_GONE)
