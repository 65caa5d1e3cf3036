"""Compares the samples that a gateway gives to the trainer with what was sampled and delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.referee.conversation import ProgramTurn, Sampling, TrainedSample, find_words
from agentrl.referee.policy import Vocabulary
from agentrl.referee.program import Scenario
from agentrl.referee.truth import check_prompt, check_reply, count_chains

LOGPROB_ERROR = 5e-6
"""Below the distance of two of the engine's logprobs, above what float32 loses."""
SHOWN = 12
"""Findings of one kind that are kept."""


SCORES = {
    "sampled": "tokens of answers that the program got",
    "trained": "those of them that are trained, each once, exactly as they were sampled",
    "lost": "those that are not trained",
    "ghost": "trained tokens of answers that nobody got",
    "doubled": "tokens that are trained again in another place",
    "invented": "trained tokens that were not sampled after exactly the tokens before them",
    "logprobs": "trained tokens with another logprob than the engine's",
    "versions": "trained tokens that are ascribed to other weights",
    "disobeyed": "requests that the policy does not see as they were sent",
    "calls": "answers that the program got changed, or with other calls",
    "refused": "requests that got no answer",
    "chains": "sequences beyond what the conversations need: a cost, and no fault",
}
"""Meaning of each score."""
WRONG = ("ghost", "doubled", "invented", "logprobs", "versions", "disobeyed", "calls")
"""Scores of what teaches the policy what did not happen, or hides from it what did."""
STATES = {"wrong": WRONG, "lost": ("lost", "refused"), "costly": ("chains",)}
"""By the scores that make it so, the worst first; else it is ``clean``."""


def classify(scores: Mapping[str, int]) -> str:
    """Return the state that scores make of a cell, or of a run."""
    states = (state for state, names in STATES.items() if any(scores[name] for name in names))
    return next(states, "clean")


@dataclass(frozen=True, slots=True)
class ScoreReason:
    """Why a score is not 0."""

    kind: str
    """The name of the score."""
    text: str
    turn: int | None = None
    """The request that it is about."""


@dataclass(slots=True)
class Cell:
    """One scenario on one API: what happened, and its scores with the reasons."""

    scenario: Scenario
    wire: str
    not_offered: str = ""
    """Why the API, or the gateway, has no such thing; empty: it is judged."""
    broken: str = ""
    """Why it could not be judged whole; it counts as a request without an answer."""
    turns: Sequence[ProgramTurn] = ()
    samplings: Sequence[Sampling] = ()
    samples: Sequence[TrainedSample] = ()
    scores: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(SCORES, 0)))
    findings: list[ScoreReason] = field(default_factory=list)

    @property
    def state(self) -> str:
        """``not offered``, or what ``classify`` says."""
        return "not offered" if self.not_offered else classify(self.scores)

    def add(self, kind: str, count: int, text: str, turn: int | None = None) -> None:
        """Raise a score by ``count``, and keep why, unless there are many of its kind."""
        self.scores[kind] += max(count, 0)
        if count > 0 and sum(finding.kind == kind for finding in self.findings) < SHOWN:
            self.findings.append(ScoreReason(kind, text, turn))


def judge(cell: Cell, vocabulary: Vocabulary) -> None:
    """Set the scores of a cell by its linked turns, the engine's calls, and the samples."""
    delivered = {turn.sampling.index for turn in cell.turns if turn.sampling is not None}
    for sampling in [turn.sampling for turn in cell.turns if turn.sampling is not None]:
        delivered |= {other.index for other in _resumed(sampling, cell.samplings)}
    _judge_turns(cell, vocabulary)
    _judge_samples(cell, delivered, vocabulary)
    least, chains = count_chains(cell.turns), sum(any(sample.mask) for sample in cell.samples)
    differs = _differ(cell.samples[-1], cell.samples[:-1], vocabulary) if chains > least else ""
    cell.add("chains", chains - least, f"{chains} sequences, where {least} would do{differs}")
    # what stopped a scenario is mostly a request that is counted
    counted = cell.scores["refused"] and not cell.broken.startswith("finish")
    cell.add("refused", int(bool(cell.broken) and not counted), cell.broken)


# --- requests -------------------------------------------------------------------------------------


def link(turns: Sequence[ProgramTurn], samplings: Sequence[Sampling]) -> list[ProgramTurn]:
    """Return the turns with the calls of the engine whose answers they got.

    An answer is known by its words; an empty one by the cue of its request.
    """
    taken: set[int] = set()
    linked = []
    for turn in turns:
        found = None if turn.reply is None else _find_sampling(turn, samplings, taken)
        if found is not None:
            taken.add(found.index)
        linked.append(replace(turn, sampling=found))
    return linked


def _find_sampling(
    turn: ProgramTurn, samplings: Sequence[Sampling], taken: set[int]
) -> Sampling | None:
    assert turn.reply is not None
    text, words = turn.reply.text, turn.reply.words() | find_words(turn.reply.thought)
    last = {word for message in turn.request.history[-1:] for word in message.words()}

    def fit(sampling: Sampling) -> tuple[int, bool]:
        if sampling.unscripted:
            common = int(sampling.answer.text in text)
        elif words:
            common = len(words & sampling.answer.words())
        else:
            common = int(sampling.cue in last and sampling.state == "done")
        return common, sampling.index not in taken

    known = (sampling for sampling in samplings if sampling.answer.fault in ("", "abort"))
    found = max(known, key=fit, default=None)
    return found if found is not None and fit(found)[0] else None


def _resumed(sampling: Sampling, samplings: Sequence[Sampling]) -> list[Sampling]:
    """Return the aborted answers with which the engine was asked to go on."""
    aborted = [other for other in samplings if other.answer.fault and other.output]
    return [other for other in aborted if sampling.prompt == other.tokens]


def _judge_turns(cell: Cell, vocabulary: Vocabulary) -> None:
    answers: dict[int, Sampling] = {}
    for turn in cell.turns:
        name, sampling = f"request {turn.index}: ", turn.sampling
        if turn.reply is None:
            cell.add("refused", int(not turn.may_fail), name + turn.fault, turn.index)
            continue
        if sampling is None:
            cell.add("calls", 1, f"{name}its answer was never sampled", turn.index)
            continue
        unseen = list(check_prompt(turn.request, answers, sampling.prompt, vocabulary))
        changed = [] if _resumed(sampling, cell.samplings) else list(check_reply(turn, sampling))
        cell.add("disobeyed", int(bool(unseen)), name + "; ".join(unseen), turn.index)
        cell.add("calls", int(bool(changed)), name + "; ".join(changed), turn.index)
        answers[turn.reply.key] = sampling


# --- samples --------------------------------------------------------------------------------------


def _judge_samples(cell: Cell, delivered: set[int], vocabulary: Vocabulary) -> None:
    trained: Counter[tuple[int, int]] = Counter()
    """Number of places in which each token of each sampling is trained."""
    for number, sample in enumerate(cell.samples):
        places = _place_samplings(sample, cell.samplings, delivered)
        invented = sum(mask and at not in places for at, mask in enumerate(sample.mask))
        logprobs = versions = 0
        for at, (sampling, offset) in places.items():
            if not sample.mask[at]:
                continue
            trained[sampling.index, offset] += 1
            if sample.logprobs is not None:
                error = abs(sample.logprobs[at] - sampling.logprobs[offset])
                logprobs += not error <= LOGPROB_ERROR
            if sample.versions is not None and sampling.version:
                versions += sample.versions[at] != sampling.version
        text = f"sample {number}: {invented} trained tokens that were not sampled there"
        differs = _differ(sample, cell.samplings, vocabulary) if invented else ""
        cell.add("invented", invented, text + differs)
        cell.add("logprobs", logprobs, f"sample {number}: {logprobs} are not the engine's")
        cell.add("versions", versions, f"sample {number}: {versions} tokens have other weights")
    for sampling in cell.samplings:
        name, size = f"engine call {sampling.index}", len(sampling.output)
        counts = [trained[sampling.index, offset] for offset in range(size)]
        once = sum(count > 0 for count in counts)
        again = sum(counts) - once
        cell.add("doubled", again, f"{name}: {again} tokens are trained again")
        if sampling.index in delivered:
            cell.scores["sampled"] += size
            cell.scores["trained"] += once
            text = f"{name}: {size - once} of {size} tokens that the program got are not trained"
            cell.add("lost", size - once, text)
        else:
            text = f"{name}: {once} tokens are trained of an answer that nobody got"
            cell.add("ghost", once, text)


def _place_samplings(
    sample: TrainedSample, samplings: Sequence[Sampling], delivered: set[int]
) -> dict[int, tuple[Sampling, int]]:
    """Return for each place of a sample the sampling that stands there, after exactly its prompt.

    Of several, the one whose logprobs are there counts, else the longest, else the delivered one.
    """
    ends = {each.index: _count_common(sample.tokens, each.tokens) for each in samplings}

    def fit(sampling: Sampling) -> tuple[bool, int, bool]:
        held = (sample.logprobs or ())[len(sampling.prompt) :][:1]
        pairs = zip(held, sampling.logprobs, strict=False)
        same = any(abs(ours - theirs) <= LOGPROB_ERROR for ours, theirs in pairs)
        return same, ends[sampling.index], sampling.index in delivered

    places: dict[int, tuple[Sampling, int]] = {}
    for sampling in sorted(samplings, key=fit):
        start = len(sampling.prompt)
        for at in range(start, ends[sampling.index]):
            places[at] = sampling, at - start
    return places


def _count_common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(ours), len(theirs)))


def _differ(sample: TrainedSample, others: Sequence[Any], vocabulary: Vocabulary) -> str:
    """Return where a sample leaves the call of the engine, or the sample, that is nearest to it."""
    if not others:
        return ""
    nearest = max(others, key=lambda each: _count_common(sample.tokens, each.tokens))
    at = _count_common(sample.tokens, nearest.tokens)
    had, has = (vocabulary.decode(each.tokens[at : at + 8]) for each in (nearest, sample))
    return f"; the nearest one is the same up to token {at}: then it has {had!r}, not {has!r}"
