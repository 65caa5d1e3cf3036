"""A perfect result is clean in every scenario; each broken one is seen by the right score."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from agentrl.referee.conversation import ProgramRequest, TrainedSample
from agentrl.referee.judge import Cell, judge
from agentrl.referee.policy import FORMS, CueEngine, Vocabulary
from agentrl.referee.program import Scenario
from agentrl.referee.trial import Trial
from tests.runners.api.referee.mutants import mutate
from tests.runners.api.referee.perfect_gateway import Node, PerfectGateway, ReferenceGateway


async def run(
    vocabulary: Vocabulary,
    scenarios: Sequence[Scenario],
    gateway: type[PerfectGateway] = PerfectGateway,
) -> list[Cell]:
    engine = CueEngine(vocabulary)
    trial = Trial(ReferenceGateway(engine, gateway), engine, seed=0)
    cells, ended = await trial.run(scenarios, ["neutral"])
    assert not ended
    return cells


@pytest.mark.integration
async def test_a_perfect_result_is_clean_and_each_broken_one_is_seen(
    vocabulary: Vocabulary, scenarios: dict[str, Scenario]
) -> None:
    cells = await run(vocabulary, list(scenarios.values()))
    assert [(c.scenario.name, c.findings) for c in cells if c.state != "clean"] == []
    assert len(cells) >= 60
    assert all(cell.scores["trained"] for cell in cells)
    seen: dict[str, str] = {}
    for cell in cells:
        for name, score, broken in mutate(cell, vocabulary):
            if name in seen:
                continue
            judge(broken, vocabulary)
            seen[name] = cell.scenario.name
            assert broken.scores[score] > 0, (name, cell.scenario.name, broken.scores)
            assert any(finding.kind == score for finding in broken.findings)
    assert len(seen) >= 50


@pytest.mark.parametrize("form", list(FORMS)[1:])
async def test_scenarios_are_clean_whatever_the_form_of_calls(
    form: str, vocabulary: Vocabulary, scenarios: dict[str, Scenario]
) -> None:
    names = ("typed_arguments", "cut_call", "bad_arguments", "unclosed_call", "unknown_tool")
    other = Vocabulary(vocabulary.directory, form)
    cells = await run(other, [scenarios[name] for name in names])
    assert {cell.state for cell in cells} == {"clean"}
    outputs = [other.decode(sampling.output) for cell in cells for sampling in cell.samplings]
    mark = {"qwen3_coder": "<function=", "glm": "<arg_key>"}[form]
    assert all((mark in text) == ("<tool_call>" in text) for text in outputs if "{" not in text)
    assert not any('"arguments"' in text for text in outputs)


class UnwantedAnswersAreTrained(PerfectGateway):
    def finish(self) -> list[TrainedSample]:
        others = [s for s in self.engine.samplings if s.state == "cut"]
        return super().finish() + [
            TrainedSample(s.tokens, (0,) * len(s.prompt) + (1,) * len(s.output)) for s in others
        ]


async def test_an_unwanted_answer_is_not_taken_for_another_that_begins_alike(
    vocabulary: Vocabulary, scenarios: dict[str, Scenario]
) -> None:
    (cell,) = await run(vocabulary, [scenarios["retry_twice"]], UnwantedAnswersAreTrained)
    cut = [sampling for sampling in cell.samplings if sampling.state == "cut"]
    assert cell.scores["ghost"] == sum(len(sampling.output) for sampling in cut) > 0
    assert cell.scores["doubled"] == 0


# --- gateways that break in the ways that scenarios are made for ----------------------------------


class TextsAreCompared(PerfectGateway):
    part = "texts"

    def continues(self, node: Node, request: ProgramRequest) -> bool:
        pairs = zip(node.conversation, request.history, strict=False)
        same = all(getattr(one, self.part) == getattr(two, self.part) for one, two in pairs)
        return same and super().continues(node, request)


class CallsAreCompared(TextsAreCompared):
    part = "calls"


class ThoughtsAreCompared(TextsAreCompared):
    part = "thought"


class FormsAreCompared(TextsAreCompared):
    part = "is_list"


class AnswersAreKnownByTheirPlace(PerfectGateway):
    def continues(self, node: Node, request: ProgramRequest) -> bool:
        sent = request.history
        return len(sent) > len(node.conversation) and request.system == node.request.system


class LaterToolsAreNotShown(PerfectGateway):
    def continues(self, node: Node, request: ProgramRequest) -> bool:
        return super().continues(node, ProgramRequest(request.system, (), request.history))


class TextsBecomeControlTokens(PerfectGateway):
    def encode(self, text: str) -> list[int]:
        return self.vocabulary.encode(text)


class BranchesAreTrainedWhole(PerfectGateway):
    def make_sample(self, leaf: Node, claimed: set[int]) -> TrainedSample:
        return super().make_sample(leaf, set())


BROKEN: list[tuple[type[PerfectGateway], str, Callable[[Cell], int]]] = [
    (TextsAreCompared, "text_trimmed", lambda cell: cell.scores["chains"]),
    (CallsAreCompared, "ids_cleaned", lambda cell: cell.scores["chains"]),
    (CallsAreCompared, "default_added", lambda cell: cell.scores["chains"]),
    (ThoughtsAreCompared, "thoughts_dropped", lambda cell: cell.scores["chains"]),
    (FormsAreCompared, "text_or_list", lambda cell: cell.scores["chains"]),
    (AnswersAreKnownByTheirPlace, "edit_command", lambda cell: cell.scores["disobeyed"]),
    (AnswersAreKnownByTheirPlace, "redacted", lambda cell: cell.scores["disobeyed"]),
    (LaterToolsAreNotShown, "tool_added", lambda cell: cell.scores["disobeyed"]),
    (TextsBecomeControlTokens, "control_in_result", lambda cell: cell.scores["disobeyed"]),
    (BranchesAreTrainedWhole, "forked", lambda cell: cell.scores["doubled"]),
]


@pytest.mark.parametrize(("gateway", "name", "score"), BROKEN)
async def test_a_gateway_that_breaks_is_seen_by_the_scenario_that_is_made_for_it(
    gateway: type[PerfectGateway],
    name: str,
    score: Callable[[Cell], int],
    vocabulary: Vocabulary,
    scenarios: dict[str, Scenario],
) -> None:
    (cell,) = await run(vocabulary, [scenarios[name]], gateway)
    assert score(cell) > 0
