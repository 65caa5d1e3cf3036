"""The scripted engine: it answers by what it is asked, not by when.

The newest message of each request holds a word, its *cue*. The engine gives the answers of the cue
that stands last in the prompt, one after the other: so requests may come in any order, or side by
side. All of its logprobs differ, so that a swap is seen.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

import aiohttp
from pydantic import TypeAdapter

from agentrl.referee.conversation import (
    WORD,
    PolicyAnswer,
    RefereeError,
    Sampling,
)
from agentrl.referee.vocabulary import Vocabulary

HOLD_S = 10.0
"""The longest time that an answer is held."""
CONTROL_S = 30.0
"""Deadline of a call of a referee's engine in another process."""
KEPT_CUES = 10_000
MORE = PolicyAnswer("More than that was not asked for.")
"""The answer to a prompt without a cue, or with one whose answers were all given."""


class ScenarioEngine(Protocol):
    """An engine as a scenario uses it, here or in another process."""

    async def script(self, cue: str, answers: Sequence[PolicyAnswer]) -> None:
        """Add answers to the prompts that end with a cue."""

    async def wait(self, cue: str) -> None:
        """Return when a prompt with this cue is being answered; at once, if one was."""

    async def release(self, cue: str) -> None:
        """Give the answers that are held, and hold none of this cue from now on."""

    async def set_version(self, version: int) -> None:
        """Go on with other weights."""

    async def list_samplings(self, first: int) -> list[Sampling]:
        """Return the calls from number ``first`` on."""


class CueEngine:
    """The engine itself."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.samplings: list[Sampling] = []
        self.version = 1
        self._answers: dict[str, deque[PolicyAnswer]] = {}
        self._arrived: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._tokens = 0
        """Tokens sampled so far."""

    async def script(self, cue: str, answers: Sequence[PolicyAnswer]) -> None:
        """See ``ScenarioEngine``."""
        self._answers.setdefault(cue, deque()).extend(answers)
        self._arrived.pop(cue, None)
        self._released.pop(cue, None)
        if len(self._answers) > KEPT_CUES:  # an engine that serves for days
            del self._answers[next(iter(self._answers))]

    async def wait(self, cue: str) -> None:
        """See ``ScenarioEngine``."""
        async with asyncio.timeout(HOLD_S):
            await self._arrived[cue].wait()

    async def release(self, cue: str) -> None:
        """See ``ScenarioEngine``."""
        self._released[cue].set()

    async def set_version(self, version: int) -> None:
        """See ``ScenarioEngine``."""
        self.version = version

    async def list_samplings(self, first: int) -> list[Sampling]:
        """See ``ScenarioEngine``."""
        return self.samplings[first:]

    async def describe(self) -> dict[str, Any]:
        """Return the engine's tokenizer, its form of calls, and how often it was called."""
        directory = str(self.vocabulary.directory.resolve())
        known = {"tokenizer": directory, "format": self.vocabulary.form}
        return {**known, "samplings": len(self.samplings)}

    async def sample(
        self, prompt: Sequence[int], limit: int | None = None, *, tells_version: bool = True
    ) -> Sampling:
        """Return the next answer to a prompt; one that is cancelled is kept as ``cut``."""
        cue = self._find_cue(self.vocabulary.decode(prompt))
        queue = self._answers.get(cue)
        answer = queue.popleft() if queue else MORE
        output = self.vocabulary.sample(answer)
        finish = answer.finish
        if answer.fault:
            output, finish = output[: len(output) // 2 if answer.fault == "abort" else 0], "abort"
        if limit is not None and len(output) > limit:
            output, finish = output[:limit], "length"
        first = self._tokens + 1
        self._tokens += len(output)
        sampling = Sampling(
            index=len(self.samplings),
            prompt=tuple(prompt),
            output=tuple(output),
            # exact in float32, and as JSON
            logprobs=tuple(-(n % 2**22 + 1) / 65536 for n in range(first, first + len(output))),
            version=self.version if tells_version else 0,
            cue=cue,
            answer=answer,
            finish=finish,
            state="fault" if answer.fault else "done",
            unscripted=answer is MORE,
        )
        self.samplings.append(sampling)
        self._arrived[cue].set()
        try:
            if answer.hold:
                await asyncio.wait_for(self._released[cue].wait(), HOLD_S)
        except TimeoutError:
            pass  # whoever held it has gone
        except asyncio.CancelledError:
            self.mark_cut(sampling)
            raise
        return sampling

    def mark_cut(self, sampling: Sampling) -> None:
        """Note that whoever asked left before the answer was written."""
        self.samplings[sampling.index] = replace(sampling, state="cut")

    def _find_cue(self, prompt: str) -> str:
        known = (word for word in reversed(WORD.findall(prompt)) if word in self._answers)
        return next(known, "")


class RemoteEngine:
    """An engine that ``agentrl referee engine`` serves in another process."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    async def script(self, cue: str, answers: Sequence[PolicyAnswer]) -> None:
        """See ``ScenarioEngine``."""
        await self._call("script", cue=cue, answers=[asdict(answer) for answer in answers])

    async def wait(self, cue: str) -> None:
        """See ``ScenarioEngine``."""
        await self._call("wait", cue=cue)

    async def release(self, cue: str) -> None:
        """See ``ScenarioEngine``."""
        await self._call("release", cue=cue)

    async def set_version(self, version: int) -> None:
        """See ``ScenarioEngine``."""
        await self._call("set_version", version=version)

    async def list_samplings(self, first: int) -> list[Sampling]:
        """See ``ScenarioEngine``."""
        answer = await self._call("list_samplings", first=first)
        return TypeAdapter(list[Sampling]).validate_python(answer["result"])

    async def describe(self) -> dict[str, Any]:
        """Return the engine's tokenizer, its form of calls, and how often it was called."""
        result: dict[str, Any] = (await self._call("describe"))["result"]
        return result

    async def _call(self, name: str, **body: Any) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=CONTROL_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as http,
                http.post(f"{self._url}/referee/{name}", json=body) as response,
            ):
                answer = await response.json(content_type=None)
                if response.status != 200 or not isinstance(answer, dict):
                    raise RefereeError(f"{self._url}: HTTP {response.status}: {answer}")
                return answer
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise RefereeError(
                f"{self._url} is no engine of a referee ({error or type(error).__name__}): start "
                "one with `agentrl referee engine --port PORT`"
            ) from error
