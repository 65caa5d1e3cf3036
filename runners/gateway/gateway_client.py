"""Sessions of a running gateway for any Python program: ``agentrl.GatewayClient``.

gateway = agentrl.GatewayClient(url, admin_key)
with gateway.session(task="fix-1") as session:
subprocess.run(["my-agent"], env=session.environment())
ended = session.finish(reward=1.0)
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from conf.sections.gateway import MODEL
from conf.sections.section import SERVER_KEYS
from runners.gateway.client import GatewayAdmin
from runners.gateway.refusal import GatewayError
from runners.records.record import Segment

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FinishedSession:
    """A session that has ended, and what is to be trained of it."""

    outcome: str
    """``policy.finished``; ``budget.turns``: it wanted more turns than it may have; ``infra.…``:
    a service failed.
    """
    message: str
    reward: float | None
    """As given; None after a failure of the infrastructure, which is no reward."""
    segments: tuple[Segment, ...]
    """Its chains: the exact tokens, their loss mask and logprobs."""
    stats: Mapping[str, Any]
    """The session's counters."""


class AttachedSession:
    """An open session; ``base_url`` (for OpenAI's clients ``base_url + "/v1"``) and ``api_key``
    are what a program needs.
    """

    def __init__(self, gateway: GatewayClient, session_id: str, api_key: str) -> None:
        """``gateway``: a client of the process in which the session lives."""
        self.id = session_id
        self.base_url = gateway.url
        self.api_key = api_key
        self.finished: FinishedSession | None = None
        self._gateway = gateway

    def environment(self) -> dict[str, str]:
        """Return the environment for a program: this process's, with address, key and model."""
        return program_environment(self.base_url, self.api_key)

    def finish(self, reward: float | None = None) -> FinishedSession:
        """End the session's turns. Raises GatewayError, also for another reward than before, and
        ValueError for one that is not finite.
        """
        if reward is not None and not math.isfinite(reward):
            raise ValueError(f"reward={reward} is no finite number")
        answer = self._gateway.call(lambda admin: admin.finish(self.id, reward))
        kept = answer["rollout"]
        self.finished = FinishedSession(
            outcome=kept["outcome"],
            message=kept["message"],
            reward=kept["reward"],
            segments=tuple(map(_read_segment, answer["segments"])),
            stats=answer["stats"],
        )
        return self.finished


class GatewayClient:
    """A running ``agentrl gateway``. It keeps no connection, and can be used from any thread."""

    def __init__(self, url: str | Sequence[str], admin_key: str) -> None:
        """``url``: as announced; with ``gateway.replicas`` all ``urls``."""
        self._urls = [url] if isinstance(url, str) else list(url)
        self.url = self._urls[0].rstrip("/")
        self._admin_key = admin_key

    @contextmanager
    def session(
        self,
        session_id: str | None = None,
        *,
        task: str | None = None,
        seed: int | None = None,
        sampling: Mapping[str, float | int] | None = None,
        max_turns: int | None = None,
        max_context_tokens: int | None = None,
    ) -> Iterator[AttachedSession]:
        """Open a session; sessions of one ``task`` are a group. Raises GatewayError.

        It is finished when the block ends, and cancelled if an exception ends it.
        """

        async def create(admin: GatewayAdmin) -> tuple[str, str, str]:
            made, key = await admin.create_session(
                session_id,
                task=task,
                seed=seed,
                sampling=sampling,
                max_turns=max_turns,
                max_context_tokens=max_context_tokens,
            )
            return made, key, admin.home(made).url

        made, key, url = self.call(create)
        home = GatewayClient(url, self._admin_key)
        session = AttachedSession(home, made, key)
        try:
            yield session
            if session.finished is None:
                session.finish()
        finally:
            with suppress(GatewayError):  # what is stored stays, and another error is on its way
                home.call(lambda admin: admin.delete(made))

    def call(self, request: Callable[[GatewayAdmin], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a call of the admin API."""

        async def run() -> T:
            admin = GatewayAdmin(self._urls, self._admin_key)
            try:
                return await request(admin)
            finally:
                await admin.close()

        # In a thread of its own: the caller's may run an event loop, as in a notebook.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, run()).result()


def _read_segment(row: Mapping[str, Any]) -> Segment:
    arrays = {
        "tokens": np.array(row["tokens"], np.int32),
        "loss_mask": np.array(row["loss_mask"], np.bool_),
        "logprobs": np.array(row["logprobs"], np.float32),
        "weight_versions": np.array(row["weight_versions"], np.int32),
        "turns": tuple(row["turns"]),
        "own_turns": tuple(row["own_turns"]),
    }
    return Segment(**{**row, **arrays})


WITHHELD = (*SERVER_KEYS, "ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY")
"""Keys of servers are not the program's; these two would be sent beside our key, or before it."""


def program_environment(url: str, api_key: str) -> dict[str, str]:
    """Return this process's environment with a gateway's address and a session's key, under the
    names that the clients of OpenAI, Anthropic and Google read.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in WITHHELD}
    return inherited | {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": api_key,
        "OPENAI_MODEL": MODEL,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": api_key,
        "ANTHROPIC_MODEL": MODEL,
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_API_KEY": api_key,
        "GEMINI_MODEL": MODEL,
    }
