"""A long training step as agent programs make it, without running any: tasks, rollouts, segments.

The rollouts of a task begin with one system prompt and task. Each turn adds sampled tokens, and
what a tool printed. Siblings take the same turns until one decides otherwise: from there on nothing
that they sample or see is the same. Half of the rollouts compact their conversation once, a quarter
start two sub-agents. All is random, so that nothing is shared by chance; the same seed gives the
same step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runners.training.sample import Rollout, Sample

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sizes of a step; tokens, if nothing else is said."""

    tasks: int = 4
    rollouts: int = 8
    """Of each task: its group."""
    prompt: int = 3000
    """System prompt and task."""
    turns: int = 20
    sampled: int = 150
    """Of a turn."""
    observed: int = 600
    """Of a turn: what a tool printed."""
    agreement: float = 0.75
    """Probability that a rollout takes the turn that its siblings take, as long as it has."""
    subagent_turns: int = 4
    compacted: int = 800
    """What a compaction leaves of the conversation after the prompt."""

    def shrink(self, divisor: int) -> StepShape:
        """Return a step with as many turns, each part so many times shorter."""
        return StepShape(
            self.tasks, self.rollouts, self.prompt // divisor, self.turns,
            max(2, self.sampled // divisor), max(2, self.observed // divisor),
            self.agreement, self.subagent_turns, max(2, self.compacted // divisor),
        )  # fmt: skip


def make_synthetic_step(shape: StepShape, *, vocabulary: int, seed: int = 0) -> list[Rollout]:
    """Return the rollouts of a step, the groups one after another.

    Rewards are 0 or 1 with both in each group; advantages are those minus the group's mean, which
    all segments of a rollout have. Logprobs are those of a policy that prefers nothing.
    """
    rng = np.random.default_rng(seed)
    system = rng.integers(0, vocabulary, shape.prompt // 2, dtype=np.int32)
    rollouts: list[Rollout] = []
    for task in range(shape.tasks):
        maker = _Group(shape, vocabulary, np.random.default_rng([seed, task]), system)
        rewards = np.arange(shape.rollouts) % 2
        for member, advantage in enumerate((rewards - rewards.mean()).tolist()):
            segments = maker.make_rollout(member)
            rollouts.append(
                [_make_sample(f"{task}-{member}", each, advantage, vocabulary) for each in segments]
            )
    return rollouts


@dataclass(frozen=True, slots=True)
class _Group:
    """Makes the rollouts of one task."""

    shape: StepShape
    vocabulary: int
    rng: np.random.Generator
    system: Tokens
    """Beginning of every prompt of the step: that of the program."""

    def make_rollout(self, member: int) -> Iterator[list[tuple[Tokens, bool]]]:
        """Yield the segments of a rollout, each as parts: tokens, and whether they are sampled."""
        shape = self.shape
        task = self._draw(0, shape.prompt - len(self.system))
        common = int(self.rng.geometric(1 - shape.agreement)) - 1 if shape.agreement < 1 else 10**9
        main = [(self.system, False), (task, False)]
        start = len(main)
        cut = shape.turns // 2 if member % 2 else None
        for turn in range(shape.turns):
            if turn == cut:
                yield main
                main = [*main[:start], (self._draw(None, shape.compacted), False)]
            main += self._take_turn(turn if turn < common else None)
            if member % 4 == 2 and turn in (shape.turns // 3, shape.turns // 2):
                yield self._run_subagent()
        yield main

    def _run_subagent(self) -> list[tuple[Tokens, bool]]:
        """Return a conversation with the program's system prompt and a task of its own."""
        turns = [self._take_turn(None) for _ in range(self.shape.subagent_turns)]
        asked = self._draw(None, self.shape.sampled)
        return [(self.system, False), (asked, False), *(part for turn in turns for part in turn)]

    def _take_turn(self, common: int | None) -> list[tuple[Tokens, bool]]:
        """Return what a turn adds; ``common``: number of the turn that all siblings take."""
        key = None if common is None else 2 * common + 1
        said = self._draw(key, self.shape.sampled)
        return [
            (said, True),
            (self._draw(None if key is None else key + 1, self.shape.observed), False),
        ]

    def _draw(self, key: int | None, size: int) -> Tokens:
        """Return random tokens: the same for all rollouts of the task with one key."""
        rng = self.rng
        if key is not None:
            rng = np.random.default_rng([int(self.system[0]), *self._name(), key])
        return rng.integers(0, self.vocabulary, size, dtype=np.int32)

    def _name(self) -> Sequence[int]:
        seed: object = self.rng.bit_generator.seed_seq.entropy  # type: ignore[attr-defined]
        assert isinstance(seed, list)
        return [int(each) for each in seed]


def _make_sample(
    rollout: str, parts: Sequence[tuple[Tokens, bool]], advantage: float, vocabulary: int
) -> Sample:
    tokens = np.concatenate([part for part, _ in parts])
    mask = np.concatenate([np.full(len(part), sampled) for part, sampled in parts])
    logprobs = np.where(mask, -np.log(vocabulary), 0).astype(np.float32)
    return Sample(rollout, tokens, mask, logprobs, advantage)
