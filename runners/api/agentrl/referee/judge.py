"""Compares the samples that a gateway gives to the trainer with what was sampled and delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from agentrl.referee.conversation import (
    PolicyAnswer,
    ProgramTurn,
    Sampling,
    TrainedSample,
    find_words,
)
from agentrl.referee.truth import Given, check_prompt, check_reply, count_chains
from agentrl.referee.vocabulary import Vocabulary

LOGPROB_ERROR = 5e-6
"""Below the distance of two of the engine's logprobs, above what float32 loses."""
SHOWN = 12
"""Findings of one kind that are kept."""


@dataclass(slots=True)
class Scores:
    """Counts of one scenario, or the sums of many."""

    sampled: int = 0
    """Tokens of answers that the program got."""
    trained: int = 0
    """Those of them that are trained, each once, exactly as they were sampled."""
    lost: int = 0
    """Those that are not trained."""
    ghost: int = 0
    """Trained tokens of answers that nobody got."""
    doubled: int = 0
    """Tokens that are trained again in another place."""
    invented: int = 0
    """Trained tokens that were not sampled after exactly the tokens that stand before them."""
    logprobs: int = 0
    """Trained tokens with another logprob than the engine's."""
    versions: int = 0
    """Trained tokens that are ascribed to other weights."""
    disobeyed: int = 0
    """Requests that the policy does not see as they were sent."""
    calls: int = 0
    """Answers that the program got changed, or with other calls."""
    refused: int = 0
    """Requests that got no answer."""
    chains: int = 0
    """Sequences beyond what the conversations need: a cost, and no fault."""
    requests: int = 0

    @property
    def wrong(self) -> int:
        """Sum of all that teaches the policy what did not happen, or hides from it what did."""
        trained = self.ghost + self.doubled + self.invented + self.logprobs + self.versions
        return trained + self.disobeyed + self.calls

    @property
    def missing(self) -> int:
        """Sum of the tokens that are not taught and the requests without an answer."""
        return self.lost + self.refused

    def add(self, other: Scores) -> None:
        """Add the counts of another scenario."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(slots=True)
class Judgement:
    """The scores of one scenario, with the reasons."""

    scores: Scores = field(default_factory=Scores)
    findings: list[dict[str, Any]] = field(default_factory=list)
    """``kind`` (the name of a score), ``text``, and what the explanation shows."""

    def note(self, kind: str, text: str, **more: Any) -> None:
        """Keep a finding, unless there are many of its kind."""
        if sum(each["kind"] == kind for each in self.findings) < SHOWN:
            self.findings.append({"kind": kind, "text": text, **more})


def link(turns: Sequence[ProgramTurn], samplings: Sequence[Sampling]) -> list[ProgramTurn]:
    """Return the turns with the calls of the engine whose answers they got.

    An answer is known by its words; an empty one by the cue of its request.
    """
    taken: set[int] = set()
    linked = []
    for turn in turns:
        if turn.reply is not None:
            found = _find_sampling(turn, samplings, taken)
            if found is not None:
                taken.add(found)
            turn = replace(turn, sampling=found)
        linked.append(turn)
    return linked


def _find_sampling(turn: ProgramTurn, samplings: Sequence[Sampling], taken: set[int]) -> int | None:
    assert turn.reply is not None
    words = turn.reply.words()
    best, most = None, 0
    for sampling in samplings:
        answer = sampling.answer
        if answer.fault not in ("", "abort"):
            continue
        common = len(words & _words_of(answer))
        if sampling.unscripted:
            common = int(answer.text in turn.reply.text)
        if common > most or (common == most > 0 and best in taken):
            best, most = sampling.index, common
    if best is not None or words:
        return best
    last = {word for message in turn.request.history[-1:] for word in message.words()}
    blank = [each.index for each in samplings if each.cue in last and each.state == "done"]
    return next((at for at in blank if at not in taken), blank[-1] if blank else None)


def _words_of(answer: PolicyAnswer) -> set[str]:
    raw = answer.raw or ""
    return find_words(answer.text, answer.thought, raw, [call.arguments for call in answer.calls])


def judge(
    turns: Sequence[ProgramTurn],
    samplings: Sequence[Sampling],
    samples: Sequence[TrainedSample],
    vocabulary: Vocabulary,
) -> Judgement:
    """Judge one session: its linked turns, the engine's calls, and the samples."""
    found = Judgement()
    by_index = {sampling.index: sampling for sampling in samplings}
    delivered = _find_delivered(turns, by_index)
    _judge_requests(found, turns, by_index, vocabulary)
    _judge_samples(found, samples, samplings, delivered, vocabulary)
    least = count_chains(turns)
    chains = sum(any(sample.mask) for sample in samples)
    found.scores.chains = max(0, chains - least)
    if found.scores.chains:
        found.note("chains", f"{chains} sequences, where {least} would do")
    return found


def _find_delivered(turns: Sequence[ProgramTurn], by_index: dict[int, Sampling]) -> set[int]:
    """Return the samplings that the program got, and those that they go on from."""
    delivered = {turn.sampling for turn in turns if turn.sampling is not None}
    for index in list(delivered):
        delivered |= {other.index for other in _resumed(by_index[index], by_index)}
    return delivered


def _resumed(sampling: Sampling, by_index: dict[int, Sampling]) -> list[Sampling]:
    """Return the aborted answers with which the engine was asked to go on."""
    return [
        other
        for other in by_index.values()
        if other.answer.fault and other.output and sampling.prompt == other.prompt + other.output
    ]


def _judge_requests(
    found: Judgement,
    turns: Sequence[ProgramTurn],
    by_index: dict[int, Sampling],
    vocabulary: Vocabulary,
) -> None:
    earlier: list[Given] = []
    for turn in turns:
        found.scores.requests += 1
        if turn.reply is None:
            if not turn.may_fail:
                found.scores.refused += 1
                found.note("refused", f"request {turn.index}: {turn.fault}", turn=turn.index)
            continue
        sampling = None if turn.sampling is None else by_index[turn.sampling]
        if sampling is None:
            found.scores.calls += 1
            found.note("calls", f"answer {turn.index} was never sampled", turn=turn.index)
            continue
        reasons = list(check_prompt(turn.request, earlier, sampling.prompt, vocabulary))
        found.scores.disobeyed += bool(reasons)
        for reason in reasons:
            found.note("disobeyed", f"request {turn.index}: {reason}", turn=turn.index)
        reasons = [] if _resumed(sampling, by_index) else list(check_reply(turn, sampling))
        found.scores.calls += bool(reasons)
        for reason in reasons:
            found.note("calls", f"answer {turn.index}: {reason}", turn=turn.index)
        message = turn.reply.message(turn.index)
        earlier.append(Given(message, turn.request.tools, vocabulary.decode(sampling.output)))


# --- samples --------------------------------------------------------------------------------------


def _judge_samples(
    found: Judgement,
    samples: Sequence[TrainedSample],
    samplings: Sequence[Sampling],
    delivered: set[int],
    vocabulary: Vocabulary,
) -> None:
    trained: Counter[tuple[int, int]] = Counter()
    """Number of places in which each token of each sampling is trained."""
    scores = found.scores
    for number, sample in enumerate(samples):
        places = _place_samplings(sample, samplings, delivered)
        invented = [at for at, mask in enumerate(sample.mask) if mask and at not in places]
        scores.invented += len(invented)
        if invented:
            text = f"sample {number}: {len(invented)} trained tokens that were not sampled there"
            near = _nearest(sample, invented[0], samplings)
            found.note("invented", text, sample=number, at=invented[0], **near)
        wrong = 0
        for at, (sampling, offset) in places.items():
            if not sample.mask[at]:
                continue
            trained[sampling.index, offset] += 1
            if sample.logprobs is not None:
                wrong += not abs(sample.logprobs[at] - sampling.logprobs[offset]) <= LOGPROB_ERROR
            if sample.versions is not None and sampling.version:
                scores.versions += sample.versions[at] != sampling.version
        scores.logprobs += wrong
        if wrong:
            found.note("logprobs", f"sample {number}: {wrong} logprobs differ from the engine's")
    if scores.versions:
        found.note("versions", f"{scores.versions} tokens are ascribed to other weights")
    for sampling in samplings:
        counts = [trained[sampling.index, offset] for offset in range(len(sampling.output))]
        once = sum(count > 0 for count in counts)
        _judge_sampling(found, sampling, once, sum(counts) - once, sampling.index in delivered)


def _judge_sampling(
    found: Judgement, sampling: Sampling, once: int, again: int, is_delivered: bool
) -> None:
    scores, name = found.scores, f"engine call {sampling.index}"
    scores.doubled += again
    if again:
        found.note("doubled", f"{name}: {again} tokens are trained again", call=sampling.index)
    if not is_delivered:
        scores.ghost += once
        if once:
            text = f"{name}: {once} tokens are trained of an answer that nobody got"
            found.note("ghost", text, call=sampling.index)
        return
    size = len(sampling.output)
    scores.sampled += size
    scores.trained += once
    scores.lost += size - once
    if once < size:
        text = f"{name}: {size - once} of {size} tokens that the program got are not trained"
        found.note("lost", text, call=sampling.index)


def _place_samplings(
    sample: TrainedSample, samplings: Sequence[Sampling], delivered: set[int]
) -> dict[int, tuple[Sampling, int]]:
    """Return for each place of a sample the sampling that stands there, after exactly its prompt.

    Of two that fit, the one whose logprobs are there counts, else the one that was delivered.
    """
    places: dict[int, tuple[Sampling, int]] = {}
    for sampling in sorted(samplings, key=lambda each: _fit(sample, each, each.index in delivered)):
        start = len(sampling.prompt)
        if sample.tokens[:start] != sampling.prompt:
            continue
        held = sample.tokens[start : start + len(sampling.output)]
        if held != sampling.output[: len(held)]:
            held = held[: _count_common(held, sampling.output)]
        for offset in range(len(held)):
            places[start + offset] = sampling, offset
    return places


def _fit(sample: TrainedSample, sampling: Sampling, is_delivered: bool) -> tuple[bool, bool, int]:
    start, logprobs = len(sampling.prompt), sample.logprobs
    same = (
        logprobs is not None
        and len(logprobs) > start
        and bool(sampling.output)
        and abs(logprobs[start] - sampling.logprobs[0]) <= LOGPROB_ERROR
    )
    return same, is_delivered, len(sampling.output)


def _count_common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(ours), len(theirs)))


def _nearest(sample: TrainedSample, at: int, samplings: Sequence[Sampling]) -> dict[str, Any]:
    """Return the sampling that a sample follows longest, and where it leaves it."""

    def sequences() -> Iterator[tuple[int, int]]:
        for sampling in samplings:
            whole = (*sampling.prompt, *sampling.output)
            yield _count_common(sample.tokens, whole), sampling.index

    common, index = max(sequences(), default=(0, -1))
    return {"call": index, "differs": common}
