"""Faults that every boundary can meet: raise, hang, delay; each is recorded in the store."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest

from conf.errors import error_text
from conf.fault_table import ALLOWED, Boundary, FaultKind
from runners.engines.contract import EngineError
from runners.gateway.refusal import GatewayError
from runners.records.store.store_error import StoreError
from runners.sandboxes.contract import SandboxError
from runners.services.faults.boundaries import GraderCrash
from runners.services.faults.plan import Fault
from runners.services.faults.proxy import jump_clock, make_hostile, restore_clock
from runners.tasks.contract import Verdict, VerdictKind
from tests.runners.services.faults.run_parts import ROLLOUT, RunParts, make_plan

ERRORS: dict[Boundary, type[Exception]] = {
    "session": GatewayError,
    "sandbox_boot": SandboxError,
    "exec": SandboxError,
    "turn": EngineError,
    "subagent": EngineError,
    "compaction": EngineError,
    "finish": GatewayError,
    "patch": SandboxError,
    "grade": GraderCrash,
    "teardown": SandboxError,
    "store": StoreError,
    "deliver": StoreError,
    "dump": StoreError,
}
RAISED: dict[FaultKind, type[BaseException]] = {
    "exception": RuntimeError,
    "cancelled": asyncio.CancelledError,
    "timeout": TimeoutError,
    "hostile": Exception,
}
SPECIAL: set[tuple[Boundary, FaultKind]] = {
    *(("session", what) for what in ("status", "cut", "clock_jump")),
    *(("finish", what) for what in ("status", "cut", "garbage")),
    *(("sandbox_boot", what) for what in ("status", "disk_full")),
    *(("exec", what) for what in ("death", "garbage")),
    *(
        (where, what)
        for where in ("turn", "subagent", "compaction")
        for what in ("status", "cut", "abort", "garbage", "disconnect")
    ),
    *(("turn", what) for what in ("death", "weight_update", "clock_jump")),
    *(("grade", what) for what in ("death", "garbage")),
    *((where, "disk_full") for where in ("patch", "store", "deliver", "dump")),
    *(("weights", what) for what in ALLOWED["weights"]),
    *(("tool", what) for what in ALLOWED["tool"]),
}
"""Pairs tested in ``test_driver_faults``, ``test_engine_faults`` and ``test_tool_faults``."""
PAIRS = [
    (where, what)
    for where in ERRORS
    for what in get_args(FaultKind)
    if what in ALLOWED[where] and what in ("error", "hang", "delay", *RAISED)
]


def test_every_allowed_fault_has_a_test() -> None:
    allowed = {(where, what) for where, whats in ALLOWED.items() for what in whats}
    assert allowed == set(PAIRS) | SPECIAL


@pytest.mark.parametrize(("where", "what"), PAIRS)
async def test_a_fault_happens_once_and_is_recorded_and_the_next_call_is_normal(
    parts: RunParts, where: Boundary, what: FaultKind
) -> None:
    async with parts.boundary(where, make_plan(where, what, k=1)) as hit:
        await hit_and_check(hit, where, what)
        k = 1
        assert parts.injected() == [(where, what, "step-000001" if where == "dump" else ROLLOUT, k)]
        if where not in ("sandbox_boot", "session", "finish"):  # those are called once
            await hit()
        assert len(parts.injected()) == 1


async def hit_and_check(hit: Any, where: Boundary, what: FaultKind) -> None:
    """Hit a boundary once and check that the planned fault happens."""
    if what == "hang":
        hanging = asyncio.create_task(hit())
        done, _ = await asyncio.wait({hanging}, timeout=0.1)
        assert not done
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
    elif what == "delay":
        await hit()
    elif (where, what) == ("grade", "error"):
        verdict = await hit()
        assert isinstance(verdict, Verdict)
        assert verdict.kind is VerdictKind.INFRA
    else:
        with pytest.raises(ERRORS[where] if what == "error" else RAISED[what]) as caught:
            await hit()
        text = error_text(caught.value)
        assert text.encode()
        assert what == "hostile" or f"injected {what} at {where} 1 (rule 0)" in text


def test_hostile_exceptions_come_in_all_four_variants() -> None:
    def make_error(fault: Fault) -> Exception:
        return SandboxError(str(fault))

    kinds = set()
    for bits in range(4):
        error = make_hostile(Fault(0, "exec", "hostile", "r", 0, 1, random_bits=bits), make_error)
        try:
            readable = "{}" in str(error)
        except ValueError:
            readable = False
        assert error_text(error).encode()
        kinds.add((isinstance(error, SandboxError), readable))
    assert kinds == {(True, True), (True, False), (False, True), (False, False)}


def test_a_clock_jump_moves_the_wall_clock_and_not_deadlines() -> None:
    import time

    before, steady = time.time(), time.monotonic()
    try:
        jump_clock(3600)
        jump_clock(-7200)
        assert -3601 < time.time() - before < -3500
        assert time.monotonic() - steady < 100
    finally:
        restore_clock()
    assert abs(time.time() - before) < 100
