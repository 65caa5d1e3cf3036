"""Test classes whose tests are coroutines that share one event loop.

The class has a loop of its own, so the kit needs no plug-in of pytest and no setting of it, and a
backend or a gateway can be started once for all tests of a class.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast

import pytest

Tests = TypeVar("Tests", bound="LoopTests")
Opened = TypeVar("Opened")
Fixtures = ParamSpec("Fixtures")


class LoopTests:
    """Base of the conformance classes: one event loop for the tests of a class."""

    limit_s: ClassVar[float] = 120.0
    """Seconds after which a test that hangs is ended, and fails."""
    runner: ClassVar[asyncio.Runner]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _event_loop(cls) -> Iterator[None]:
        with asyncio.Runner() as cls.runner:
            yield

    @classmethod
    @contextmanager
    def opened(cls, context: AbstractAsyncContextManager[Opened]) -> Iterator[Opened]:
        """Yield what an async context yields, for a fixture of the whole class."""
        value = cls.runner.run(context.__aenter__())
        try:
            yield value
        finally:
            cls.runner.run(context.__aexit__(None, None, None))


def in_loop(
    test: Callable[Concatenate[Tests, Fixtures], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Tests, Fixtures], None]:
    """Make a test of a coroutine: it runs in the loop of its class, within ``limit_s``."""

    @functools.wraps(test)
    def run(self: Tests, *args: Fixtures.args, **kwargs: Fixtures.kwargs) -> None:
        async def limited() -> None:
            async with asyncio.timeout(self.limit_s) as limit:
                await test(self, *args, **kwargs)
            assert not limit.expired()

        self.runner.run(limited())

    return cast("Callable[Concatenate[Tests, Fixtures], None]", run)
