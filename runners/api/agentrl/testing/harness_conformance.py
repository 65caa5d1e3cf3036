"""The suite for agents: everything that a run relies on, against an engine with exact tokens.

Sandbox and gateway are those of a run. The policy's replies are the author's, so the suite knows
every token that was sampled, and what the agent made of it.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from agentrl.testing.completions import END, Completion
from agentrl.testing.harness_bench import BUSY_S, HarnessBench, HarnessTrial, open_bench
from agentrl.testing.loop_tests import LoopTests, in_loop
from agentrl.testing.plugin_target import PluginTests
from agentrl.testing.threaded_engine import MAIN
from conf.compose import compose
from conf.schema import Config
from conf.sections.harness import CustomHarnessConfig
from conf.targets import is_file, split_target
from runners.records.outcome import OutcomeClass, OutcomeCode
from runners.rollouts.contract import HarnessResult
from runners.sandboxes.contract import SandboxError
from runners.system.plugins import plugin_loop

PROMPT = "Fix add in a.py.\n\n  It says \"a - b\", 'é' and $HOME; `rm` nothing \\n."
"""Characters that a shell, JSON or a template would change."""
FAILURES = {
    "an error of the engine": Completion(status=500, message="out of memory"),
    "a connection that is cut": Completion(drops=True),
    "an aborted generation": Completion("Half of ", finish="abort"),
}


class HarnessConformance(PluginTests, LoopTests):
    """Tests of an agent: its tokens, branches, budgets, failures, and that nothing is left."""

    settings: ClassVar[Sequence[str]] = ()
    """KEY=VALUE of the run's configuration, as for ``agentrl run``: ``sandbox=…``, ``scenario=…``.
    """
    replies: ClassVar[Sequence[str] | Mapping[str, Sequence[str]]] = ("Done.",)
    """The policy's answers in one whole rollout, in order: text, or ``call(…)`` of a tool. A
    mapping has those of ``main``, and of each sub-agent by a text of its prompt. The agent has to
    take all of them, and to ask for no more.
    """
    segments: ClassVar[Mapping[str, int]] = {"final": 1}
    """Expected segments by kind: final, subagent, side, compaction, wipe, edit."""
    deadline_s: ClassVar[float] = 2.0
    """Deadline of a rollout whose model does not answer."""
    grace_s: ClassVar[float] = 20.0
    """Time to end after the deadline, a failure or a cancellation; the machine may be busy."""
    bench: ClassVar[HarnessBench]
    trial: ClassVar[HarnessTrial]
    """The one rollout to its end, which several tests look at."""
    asked: ClassVar[int]
    """Requests of that rollout that the engine received."""
    file: ClassVar[str | None]
    earlier: ClassVar[set[asyncio.Task[Any]]]
    """Tasks that were there before this suite began."""

    def configuration(self) -> Config:
        """Return the configuration of a run with this agent."""
        given = [f"harness={self.find_target()}", *self.settings]
        engine = ["engine=sglang", "engine.url=http://127.0.0.1:1", "run.steps=0"]
        model = ["model=local", "model.tokenizer=none", "model.renderer=qwen3"]
        config = compose([*model, *engine, "sandbox=local", "sandbox.warm=0", *given])
        if not self.options:
            return config
        if not isinstance(config.harness, CustomHarnessConfig):
            raise ValueError(f"harness={self.target} has no options: use settings")
        harness = config.harness.model_copy(update={"options": dict(self.options)})
        return config.model_copy(update={"harness": harness})

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _open_bench(
        cls, _event_loop: None, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[None]:
        suite = cls()
        config = suite.configuration()
        with cls.opened(open_bench(config, tmp_path_factory.mktemp("harness"))) as bench:
            cls.bench, cls.file = bench, _find_file(config)
            cls.earlier = cls._list_tasks()  # what others have left
            cls.trial = cls.runner.run(suite._run_whole())
            cls.asked = len(bench.engine.seen.requests)
            yield

    # --- one rollout to its end -----------------------------------------------------------------

    def test_it_takes_every_reply_and_asks_for_no_other(self) -> None:
        assert self.trial.error is None, f"the agent raised {self.trial.error!r}"
        assert self.asked == self._count_replies(), (
            f"the agent asked the model {self.asked} times; its author gives "
            f"{self._count_replies()} replies. {self._describe()}"
        )

    def test_it_reports_that_it_finished(self) -> None:
        result = self._result()
        assert result.code.outcome_class is OutcomeClass.POLICY, self._describe()

    def test_every_sampled_token_is_trained_as_it_was_sampled(self) -> None:
        stats, seen = self.trial.session["stats"], self.bench.engine.seen
        sampled = sum(len(ids) for ids, _ in seen.answered[: self.asked])
        assert stats["sampled_tokens"] == sampled, "the gateway recorded other tokens"
        assert stats["trained_tokens"] == sampled, (
            f"{sampled - stats['trained_tokens']} of {sampled} sampled tokens are not trained"
        )
        sequences = [
            seen.requests[turn]["input_ids"] + seen.answered[turn][0] for turn in range(self.asked)
        ]
        for segment in self.trial.session["segments"]:
            assert segment["tokens"] in sequences, "a segment is not what the model saw and said"

    def test_its_branches_are_those_that_its_author_expects(self) -> None:
        found = Counter(segment["kind"] for segment in self.trial.session["segments"])
        assert dict(found) == dict(self.segments), (
            "segments by kind. A wipe: an earlier message was changed, so the turns before it are "
            "trained apart from those after it"
        )

    def test_the_prompt_reaches_the_model_as_it_is(self) -> None:
        engine = self.bench.engine
        assert engine.seen.requests, f"the model was never asked. {self._describe()}"
        prompts = (
            engine.tokenizer.decode(request["input_ids"], skip_special_tokens=False)
            for request in engine.seen.requests[: self.asked]
        )
        assert any(PROMPT in prompt for prompt in prompts), "no request has the prompt word by word"

    def test_its_key_is_in_no_file_and_no_command_line(self) -> None:
        key, url = self.trial.key, str(self.trial.sandbox.gateway_url)
        for name, content in self.trial.files.items():
            assert key.encode() not in content, f"{name} of the workspace has the session's key"
            assert url.encode() not in content, f"{name} of the workspace has the gateway's URL"
        for command in self.trial.sandbox.commands:
            assert not any(key in word for word in command), "a command line has the session's key"

    def test_nothing_of_a_finished_rollout_runs_on(self) -> None:
        self._check_left(self.trial)

    # --- budgets --------------------------------------------------------------------------------

    @in_loop
    async def test_it_ends_when_its_turns_are_spent(self) -> None:
        budget = self._count_replies() - 1
        if not budget:
            pytest.skip("the agent takes one turn: give more replies")
        self._script()
        before = len(self.bench.engine.seen.requests)
        async with self._ending_trial(max_turns=budget) as trial:
            pass
        taken = len(self.bench.engine.seen.requests) - before
        assert taken == budget, f"{taken} turns were taken of a budget of {budget}"
        self._check_no_success(trial, "its turns were spent before it had finished")

    @in_loop
    async def test_it_ends_at_its_deadline(self) -> None:
        self._fail_with(Completion("Too late.", delay_s=3600))
        async with self._ending_trial(deadline_s=self.deadline_s) as trial:
            pass
        self._check_no_success(trial, "the model did not answer within the deadline")
        assert trial.result is not None
        code = trial.result.code
        assert code is OutcomeCode.BUDGET_WALL, f"at its deadline it reports {code}"

    # --- failures -------------------------------------------------------------------------------

    @pytest.mark.parametrize("failure", list(FAILURES))
    @in_loop
    async def test_a_model_that_fails_is_no_success(self, failure: str) -> None:
        self._fail_with(FAILURES[failure])
        async with self._ending_trial(deadline_s=max(self.deadline_s, 10.0)) as trial:
            pass
        self._check_no_success(trial, f"the model answered with {failure}")

    @in_loop
    async def test_a_lost_sandbox_is_reported(self) -> None:
        async with self.bench.open_trial() as trial:
            trial.sandbox.lost = True
            await self._wait_end(self._start(trial), "after its sandbox was lost")
        if not isinstance(trial.error, SandboxError):
            self._check_no_success(trial, "its sandbox was lost")

    @in_loop
    async def test_a_cancelled_rollout_ends_and_leaves_nothing(self) -> None:
        self._fail_with(Completion("Too late.", delay_s=3600))
        async with self.bench.open_trial() as trial:
            work = self._start(trial)
            await self._wait_asked(work)
            work.cancel()
            await self._wait_end(work, "after it was cancelled")
        assert isinstance(trial.error, asyncio.CancelledError), (
            f"a cancelled rollout has to raise CancelledError, not {trial.error or trial.result}"
        )
        self._check_left(trial)

    @in_loop
    async def test_two_rollouts_at_once_do_not_meet(self) -> None:
        if isinstance(self.replies, Mapping):
            pytest.skip("the replies of sub-agents are of one rollout")
        words = [f"rollout-{secrets.token_hex(6)}" for _ in range(2)]
        self.bench.engine.set_scripts({word: self._texts()[MAIN] for word in words})
        before = len(self.bench.engine.seen.requests)
        async with self.bench.open_trial() as one, self.bench.open_trial() as other:
            starts = zip((one, other), words, strict=True)
            await asyncio.gather(*(self.bench.start(trial, word) for trial, word in starts))
        for request in self.bench.engine.seen.requests[before:]:
            prompt = self.bench.engine.tokenizer.decode(request["input_ids"])
            assert sum(word in prompt for word in words) == 1, "a prompt has words of another one"
        turns = [trial.session["stats"]["turns"] for trial in (one, other)]
        assert turns == [self._count_replies()] * 2, f"turns of each: {turns}"

    # --- parts ----------------------------------------------------------------------------------

    async def _run_whole(self) -> HarnessTrial:
        self._script()
        async with self._ending_trial() as trial:
            pass
        return trial

    @asynccontextmanager
    async def _ending_trial(
        self, *, max_turns: int | None = None, deadline_s: float = BUSY_S
    ) -> AsyncIterator[HarnessTrial]:
        """Yield a rollout that has ended, at the latest some time after its deadline."""
        async with self.bench.open_trial(max_turns) as trial:
            work = self._start(trial, deadline_s)
            await self._wait_end(work, f"after its deadline of {deadline_s:g} s", deadline_s)
            yield trial

    def _start(self, trial: HarnessTrial, deadline_s: float = BUSY_S) -> asyncio.Future[None]:
        return asyncio.ensure_future(self.bench.start(trial, PROMPT, deadline_s))

    async def _wait_end(self, work: asyncio.Future[None], when: str, more_s: float = 0.0) -> None:
        _, pending = await asyncio.wait([work], timeout=self.grace_s + more_s)
        if pending:
            work.cancel()
            pytest.fail(f"the agent did not end {when}: it had {self.grace_s:g} s more")
        if not work.cancelled():
            work.exception()  # the trial has it; else asyncio reports that nobody looked

    async def _wait_asked(self, work: asyncio.Future[None]) -> None:
        asked: asyncio.Future[Any] = asyncio.ensure_future(self.bench.engine.arrived.wait())
        await asyncio.wait([asked, work], timeout=BUSY_S, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            asked.cancel()
            pytest.fail("the agent ended, or waited, without asking the model")

    def _texts(self) -> dict[str, list[str]]:
        replies = self.replies if isinstance(self.replies, Mapping) else {MAIN: self.replies}
        return {
            key: [text if text.endswith(END) else text + END for text in texts]
            for key, texts in replies.items()
        }

    def _count_replies(self) -> int:
        return sum(map(len, self._texts().values()))

    def _script(self) -> None:
        engine = self.bench.engine
        engine.set_scripts(self._texts())
        engine.always = Completion(self._texts()[MAIN][-1])  # an agent that asks too often ends

    def _fail_with(self, completion: Completion) -> None:
        engine = self.bench.engine
        engine.set_scripts({})
        engine.always = completion
        engine.arrived.clear()

    def _result(self) -> HarnessResult:
        assert self.trial.error is None, f"the agent raised {self.trial.error!r}"
        assert self.trial.result is not None
        return self.trial.result

    def _describe(self) -> str:
        result = self.trial.result
        return f"It ended with {result.code}: {result.output[-600:]}" if result else ""

    def _check_no_success(self, trial: HarnessTrial, fault: str) -> None:
        assert trial.error is None, f"the agent raised {trial.error!r}, and {fault}"
        assert trial.result is not None
        assert trial.result.code is not OutcomeCode.POLICY_FINISHED, (
            f"{fault}, and the agent reports {trial.result.code}"
        )
        self._check_left(trial)

    @classmethod
    def _list_tasks(cls) -> set[asyncio.Task[Any]]:
        return {
            task
            for loop in (cls.runner.get_loop(), plugin_loop())
            for task in asyncio.all_tasks(loop)
        }

    def _check_left(self, trial: HarnessTrial) -> None:
        assert not trial.left, f"processes of the agent still run: {trial.left}"
        for task in self._list_tasks() - self.earlier:
            code = getattr(task.get_coro(), "cr_code", None)
            own = code is not None and code.co_filename == self.file
            assert not own, f"a task of the agent is still there: {task}"


def _find_file(config: Config) -> str | None:
    """Return the file of the plug-in under test; None if the agent is built in."""
    if not isinstance(config.harness, CustomHarnessConfig):
        return None
    place, _ = split_target(config.harness.target)
    return place if is_file(place) else sys.modules[place].__file__
