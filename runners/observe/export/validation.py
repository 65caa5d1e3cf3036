"""Checks what a schema cannot: that the parts of a trajectory do not contradict each other.

Every sampled token is in the loss mask of one segment; a segment is what the model saw; a prefix
that segments share is the same in each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from runners.observe.export.trajectory import SegmentPart, Trajectory, TurnPart
from runners.records.outcome import MEANING, OutcomeClass, OutcomeCode, Stage

_PER_CHECK = 5
"""Reports per check; further ones of the same kind add nothing."""


def find_contradictions(trajectory: Trajectory) -> list[str]:
    """Return the contradictions in a trajectory whose form is valid."""
    found: list[str] = []
    has_ids = all(turn.has_ids for turn in trajectory.turns)
    for check in (_outcome, _lists, _sums if has_ids else _counts, _ownership):
        found += _first(check(trajectory))
    if not found:  # these follow paths, which need not exist before
        for check in (_paths, _prefixes, _branches) if has_ids else (_branches,):
            found += _first(check(trajectory))
    return found


def _first(found: Iterator[str]) -> list[str]:
    return [fault for fault, _ in zip(found, range(_PER_CHECK), strict=False)]


def _outcome(trajectory: Trajectory) -> Iterator[str]:
    outcome, reward = trajectory.outcome, trajectory.reward
    if outcome.code not in list(OutcomeCode) or outcome.stage not in list(Stage):
        yield f"outcome {outcome.code!r} at stage {outcome.stage!r} is not in the closed list"
        return
    if OutcomeCode(outcome.code).outcome_class != outcome.outcome_class:
        yield f"outcome.class {outcome.outcome_class!r} is not the class of {outcome.code!r}"
        return
    meaning = MEANING[OutcomeClass(outcome.outcome_class)]
    if reward.counted != (meaning.reward_counts and reward.score is not None):
        yield f"reward.counted is {reward.counted} for {outcome.code} with {reward.score}"
    if trajectory.tokens.trained and not meaning.trained:
        yield f"tokens of a rollout that ended in {outcome.code} were trained"


def _lists(trajectory: Trajectory) -> Iterator[str]:
    for segment in trajectory.segments:
        lengths = {
            "tokens": len(segment.tokens),
            "loss_mask": len(segment.loss_mask),
            "logprobs": len(segment.logprobs),
            "weight_versions": len(segment.weight_versions),
        }
        where = f"segment {segment.index}"
        if len(set(lengths.values())) > 1:
            yield f"{where}: lists of different lengths {lengths}"
            continue
        rows = zip(segment.loss_mask, segment.logprobs, segment.weight_versions, strict=True)
        for position, (sampled, logprob, version) in enumerate(rows):
            if sampled and (logprob is None or not math.isfinite(logprob) or logprob > 1e-4):
                yield f"{where}: sampled token {position} has logprob {logprob}"
            elif not sampled and logprob != 0:
                yield f"{where}: token {position} was not sampled but has logprob {logprob}"
            elif version >= 0 and not sampled:
                yield f"{where}: token {position} has weight version {version}"


def _sums(trajectory: Trajectory) -> Iterator[str]:
    tokens, turns = trajectory.tokens, trajectory.turns
    masked = sum(sum(segment.loss_mask) for segment in trajectory.segments)
    held = sum(len(segment.tokens) for segment in trajectory.segments)
    if masked != tokens.sampled:
        yield f"loss masks mark {masked} tokens, tokens.sampled is {tokens.sampled}"
    if sum(turn.output_tokens for turn in turns) != tokens.sampled:
        yield "turns and tokens.sampled disagree"
    if held - masked != tokens.context:
        yield f"segments hold {held - masked} other tokens, tokens.context is {tokens.context}"
    if not 0 <= tokens.trained <= tokens.sampled:
        yield f"trained {tokens.trained} of {tokens.sampled} sampled tokens"
    if len(trajectory.raw_prompt.ids) != tokens.prompt:
        yield f"raw_prompt has {len(trajectory.raw_prompt.ids)} ids, not {tokens.prompt}"


def _counts(trajectory: Trajectory) -> Iterator[str]:
    """Check a rollout without token ids: tokens are counted, and nowhere listed."""
    tokens, turns = trajectory.tokens, trajectory.turns
    if any(turn.has_ids for turn in turns):
        yield "some of the turns have token ids, others have none"
    if any(segment.tokens for segment in trajectory.segments) or trajectory.raw_prompt.ids:
        yield "there are token ids, and its turns have none"
    if sum(turn.output_tokens for turn in turns) != tokens.sampled:
        yield "turns and tokens.sampled disagree"
    if tokens.trained:
        yield f"{tokens.trained} tokens without ids were trained"


def _ownership(trajectory: Trajectory) -> Iterator[str]:
    turns, segments = trajectory.turns, trajectory.segments
    if [turn.index for turn in turns] != list(range(len(turns))):
        yield "turns are not numbered 0, 1, …"
        return
    for what, indices in (
        ("segments", [segment.index for segment in segments]),
        ("branches", [branch.index for branch in trajectory.branches]),
    ):
        if len(set(indices)) != len(indices):
            yield f"{what} have one index twice"
            return
    owned = sorted(index for segment in segments for index in segment.own_turns)
    if owned != list(range(len(turns))):
        yield f"own_turns of the segments are {owned}, not each of {len(turns)} turns once"
        return
    for segment in segments:
        if not segment.own_turns or segment.turns[-len(segment.own_turns) :] != segment.own_turns:
            yield f"segment {segment.index}: own_turns are not the last of its turns"
        elif not all(0 <= index < len(turns) for index in segment.turns):
            yield f"segment {segment.index}: a turn of its path is not there"
        for index in segment.own_turns:
            if turns[index].segment != segment.index:
                yield f"turn {index} is of segment {turns[index].segment}, not {segment.index}"


def _end(turn: TurnPart) -> int:
    return turn.prompt_tokens + turn.output_tokens


def _paths(trajectory: Trajectory) -> Iterator[str]:
    for segment in trajectory.segments:
        path = [trajectory.turns[index] for index in segment.turns]
        where = f"segment {segment.index}"
        parents = [None, *segment.turns[:-1]]
        if [turn.parent for turn in path] != parents:
            yield f"{where}: its turns do not continue one another"
        if _end(path[-1]) != len(segment.tokens):
            yield f"{where}: its last turn ends at {_end(path[-1])} of {len(segment.tokens)} tokens"
            continue
        wanted = [0] * len(segment.tokens)
        for turn in path[-len(segment.own_turns) :]:
            wanted[turn.prompt_tokens : _end(turn)] = [1] * turn.output_tokens
        if wanted != list(segment.loss_mask):
            yield f"{where}: the mask is not on the outputs of its own turns"
            continue
        for turn in path[-len(segment.own_turns) :]:
            found = segment.weight_versions[turn.prompt_tokens : _end(turn)]
            # An engine whose weights were switched during the turn has tokens of earlier ones.
            rise = [version for version in found if 0 <= version <= turn.weight_version]
            if found and rise == sorted(found) == found and found[-1] == turn.weight_version:
                continue
            for version in sorted(set(found) - {turn.weight_version}):
                yield f"{where}: a token of turn {turn.index} has weight version {version}"


def _prefixes(trajectory: Trajectory) -> Iterator[str]:
    by_index = {segment.index: segment for segment in trajectory.segments}
    for segment in trajectory.segments:
        shared = segment.turns[: -len(segment.own_turns)]
        if not shared:
            continue
        last = trajectory.turns[shared[-1]]
        owner: SegmentPart = by_index[last.segment]
        if segment.tokens[: _end(last)] != owner.tokens[: _end(last)]:
            yield (
                f"segment {segment.index}: its first {_end(last)} tokens, shared with segment "
                f"{owner.index}, are not the same there"
            )


def _branches(trajectory: Trajectory) -> Iterator[str]:
    segments = [
        (segment.index, segment.kind, segment.thread, segment.parent_thread, segment.turns)
        for segment in trajectory.segments
    ]
    branches = [
        (branch.index, branch.kind, branch.thread, branch.parent_thread, branch.turns)
        for branch in trajectory.branches
    ]
    if segments != branches:
        yield "branches and segments are not the same chains"
    finals = [branch for branch in trajectory.branches if branch.kind == "final"]
    if len(finals) > 1:
        yield f"{len(finals)} branches are final"
    elif trajectory.messages != (finals[0].messages if finals else []):
        yield "messages are not those of the final branch"
