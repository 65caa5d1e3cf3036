"""Run checks against an engine's servers and collect their results.

A failed check is a result, never an exception: a run is refused with everything that is wrong, not
with the first thing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from conf.errors import AgentrlError, ExitCode
from runners.engines.client import HttpEngine
from runners.engines.contract import EngineError

REQUEST_DEADLINE_S = 30.0
"""For one request of a check: a healthy server answers such short prompts within a second."""


ANSWERS = "answers"
"""Name of the first check; an engine that fails it gets no other."""


class EngineUnfit(AgentrlError):
    """The engine cannot do what a run needs."""

    exit_code = ExitCode.PREFLIGHT


class CheckFailed(Exception):
    """A check failed; the text says what is wrong and how to fix it."""


def no_answer(error: EngineError, key: str = "engine.url") -> CheckFailed:
    """Return the failure of ``ANSWERS`` of the server that a key names, with the fix."""
    return CheckFailed(
        f"{error}. Start the server that {key} names, or set {key} to the address of one that runs"
    )


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check and its result."""

    name: str
    ok: bool
    detail: str
    """The observation; for a failure, the reason and the fix."""
    fatal: bool = True
    """True if a failure stops a run."""


class EngineServers:
    """Clients of an engine: of its ``url``, and of the servers behind it."""

    def __init__(self, url: str, workers: Sequence[str]) -> None:
        """``workers`` are the addresses of the servers; empty if ``url`` is the only one."""
        self.front = HttpEngine(url, deadline_s=REQUEST_DEADLINE_S)
        self.servers = [
            HttpEngine(worker, deadline_s=REQUEST_DEADLINE_S) for worker in workers
        ] or [self.front]
        self.routed = bool(workers) and url.rstrip("/") not in workers
        """True if ``url`` is a router in front of the servers."""

    @property
    def entry_points(self) -> list[HttpEngine]:
        """Every address that could be asked for a generation."""
        return [self.front, *self.servers] if self.routed else self.servers

    async def close(self) -> None:
        """Close the connections."""
        for engine in {self.front, *self.servers}:
            await engine.close()


async def run_check(
    name: str, check: Callable[[], Awaitable[str]], *, fatal: bool = True
) -> CheckResult:
    """Run one check; whatever the engine answers becomes a result."""
    try:
        return CheckResult(name, True, await check())
    except (CheckFailed, AgentrlError) as error:
        return CheckResult(name, False, " ".join(str(error).split()), fatal)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # checks read answers without looking at their shape first: another shape ends here
        kind = type(error).__name__
        return CheckResult(name, False, f"the answer cannot be judged ({kind}: {error})", fatal)


async def check_each(
    engines: Sequence[HttpEngine], check: Callable[[HttpEngine], Awaitable[str]]
) -> str:
    """Check every engine; return their distinct details, joined by ``; ``.

    Raises CheckFailed with the name of the first engine that fails.
    """
    details: dict[str, None] = {}  # a set that keeps its order
    for engine in engines:
        try:
            details[await check(engine)] = None
        except CheckFailed as error:
            name = f"{engine.name}: " if len(engines) > 1 else ""
            raise CheckFailed(f"{name}{error}") from error
    return "; ".join(details)


def require_checks(results: Sequence[CheckResult], unneeded: Sequence[str] = ()) -> None:
    """Raise EngineError if the engine does not answer; EngineUnfit for other failures.

    ``unneeded``: names of checks whose failure does not matter.
    """
    if results[0].name == ANSWERS and not results[0].ok:
        raise EngineError(results[0].detail, retryable=True, unreachable=True)
    raise_on_failures(result for result in results if result.name not in unneeded)


def raise_on_failures(results: Iterable[CheckResult]) -> None:
    """Raise EngineUnfit with every fatal failure, if there is one."""
    failures = [f"engine: {r.name}: {r.detail}" for r in results if not r.ok and r.fatal]
    if failures:
        raise EngineUnfit("\n".join(failures))
