"""What every boundary can suffer: raising, hanging, being late; each is kept in the store."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest

from conf.errors import error_text
from conf.fault_table import ALLOWED, Boundary, FaultKind
from runners.engines.contract import EngineError
from runners.faults.clock import jump, restore
from runners.faults.grader import GraderCrash
from runners.faults.inject import hostile
from runners.faults.plan import Fault
from runners.gateway.client import GatewayError
from runners.sandboxes.contract import SandboxError
from runners.store.store_error import StoreError
from runners.tasks.contract import Verdict, VerdictKind
from tests.runners.faults.boundaries import ROLLOUT, Places, plan_of

OWN: dict[Boundary, type[Exception]] = {
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
PARTICULAR: set[tuple[Boundary, FaultKind]] = {
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
"""What is tested in ``test_driver_faults``, ``test_engine_faults`` and ``test_tool_faults``."""
PAIRS = [
    (where, what)
    for where in OWN
    for what in get_args(FaultKind)
    if what in ALLOWED[where] and what in ("error", "hang", "delay", *RAISED)
]


def test_every_legal_fault_is_tested_here_or_apart() -> None:
    legal = {(where, what) for where, whats in ALLOWED.items() for what in whats}
    assert legal == set(PAIRS) | PARTICULAR


@pytest.mark.parametrize(("where", "what"), PAIRS)
async def test_a_fault_happens_once_is_kept_and_then_the_boundary_is_as_ever(
    places: Places, where: Boundary, what: FaultKind
) -> None:
    async with places.boundary(where, plan_of(where, what, k=1)) as cross:
        await outcome(cross, where, what)
        k = 1
        assert places.injected() == [
            (where, what, "step-000001" if where == "dump" else ROLLOUT, k)
        ]
        if where not in ("sandbox_boot", "session", "finish"):  # those cross once
            await cross()
        assert len(places.injected()) == 1


async def outcome(cross: Any, where: Boundary, what: FaultKind) -> None:
    """Cross a boundary once and hold what comes of it to the fault that is planned."""
    if what == "hang":
        hanging = asyncio.create_task(cross())
        done, _ = await asyncio.wait({hanging}, timeout=0.1)
        assert not done
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
    elif what == "delay":
        await cross()
    elif (where, what) == ("grade", "error"):
        verdict = await cross()
        assert isinstance(verdict, Verdict)
        assert verdict.kind is VerdictKind.INFRA
    else:
        with pytest.raises(OWN[where] if what == "error" else RAISED[what]) as caught:
            await cross()
        text = error_text(caught.value)
        assert text.encode()
        assert what == "hostile" or f"injected {what} at {where} 1 (rule 0)" in text


def test_a_hostile_exception_has_broken_text_or_none_and_is_expected_or_not() -> None:
    def own(fault: Fault) -> Exception:
        return SandboxError(str(fault))

    kinds = set()
    for dice in range(4):
        error = hostile(Fault(0, "exec", "hostile", "r", 0, 1, dice=dice), own)
        try:
            readable = "{}" in str(error)
        except ValueError:
            readable = False
        assert error_text(error).encode()
        kinds.add((isinstance(error, SandboxError), readable))
    assert kinds == {(True, True), (True, False), (False, True), (False, False)}


def test_the_clock_jumps_for_the_wall_and_not_for_deadlines() -> None:
    import time

    before, steady = time.time(), time.monotonic()
    try:
        jump(3600)
        jump(-7200)
        assert -3601 < time.time() - before < -3500
        assert time.monotonic() - steady < 100
    finally:
        restore()
    assert abs(time.time() - before) < 100
