"""Make the starting policy: a vocabulary, a network, and a warm-up on demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import tokenizers
import torch
from transformers.utils import logging

from conf.sections.scenario import ScenarioKind
from runners.records.tokenizer import Renderer, Tokenizer, load_renderer, load_tokenizer
from runners.tasks.bugfix.project import Project
from tests.starting_policy import network, vocabulary, warmup
from tests.starting_policy.demonstrations import (
    Chain,
    demonstrate,
    draw_episodes,
    iterate_texts,
    make_reading,
)

SCENARIOS: tuple[ScenarioKind, ...] = ("linear", "compact", "subagent", "mixed")
RENDERER = "qwen3"
FILE_SIZE = "900KB"
"""Largest file of weights, so that each can be kept in a repository."""

Episodes = Iterator[tuple[Project, list[Chain]]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parameters of the starting policy."""

    vocabulary: int = 1000
    context: int = 1024
    """Longest sequence in tokens."""
    demonstrations: int = 1000
    """Episodes per scenario."""
    right: float = 0.27
    """Share of demonstrations that look where the evidence is, and copy it."""
    elsewhere: float = 0.05
    """Share that look in the other place, and guess; the rest guess without a look."""
    verify: float = 0.2
    """Share that run the check after the fix, where the agent can."""
    told: float = 0.6
    """Share of the others whose main agent is shown with the evidence that an investigator would
    have found.
    """
    copying_steps: int = 120
    warmup_steps: int = 400
    seed: int = 0


RECIPE = Recipe()


def draw_all(recipe: Recipe) -> dict[ScenarioKind, Episodes]:
    """Return the episodes of every scenario."""
    return {
        scenario: draw_episodes(
            recipe.seed,
            right=recipe.right,
            elsewhere=recipe.elsewhere,
            verify=recipe.verify,
            told=recipe.told,
            scenario=scenario,
        )
        for scenario in SCENARIOS
    }


def make_policy(
    directory: Path,
    drawn: Mapping[ScenarioKind, Episodes],
    recipe: Recipe = RECIPE,
    report: Callable[[str, int, int], None] = lambda phase, done, total: None,
) -> warmup.FinalLoss:
    """Write a policy that imitates episodes of some scenarios, bfloat16, with its tokenizer.

    ``report`` gets a phase, its steps done and its steps in total. The same arguments on the same
    kind of processor give the same bytes. Torch computes with one thread from then on.
    """
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # Sums of several threads have an order, and so bits, that depends on how many there are.
    torch.set_num_threads(1)

    def load(trained: tokenizers.Tokenizer) -> tuple[Tokenizer, Renderer]:
        vocabulary.save_tokenizer(trained, directory)
        loaded = load_tokenizer(directory)
        return loaded, load_renderer(loaded, RENDERER)

    taken = {kind: list(islice(each, recipe.demonstrations)) for kind, each in drawn.items()}
    tokenizer, renderer = load(vocabulary.train_tokenizer([], size=vocabulary.BYTES_ONLY))
    # The renderer needs a tokenizer to render the prompts that the tokenizer is trained on: one of
    # bytes alone is enough for that.
    texts = (
        text
        for episodes in taken.values()
        for text in iterate_texts(renderer, tokenizer, [chains for _, chains in episodes])
    )
    tokenizer, renderer = load(vocabulary.train_tokenizer(texts, size=recipe.vocabulary))
    lessons = []
    for number, (scenario, episodes) in enumerate(taken.items(), start=1):
        columns = zip(*(chains for _, chains in episodes), strict=True)
        lessons.append(
            warmup.Lesson(
                [[demonstrate(renderer, tokenizer, chain) for chain in each] for each in columns],
                [make_reading(tokenizer, project, scenario) for project, _ in episodes],
            )
        )
        report("demonstrations", number, len(taken))
    policy = network.make_network(
        vocabulary=tokenizer.vocab_size, context=recipe.context, seed=recipe.seed
    )
    policy.config.eos_token_id = tokenizer.eos_token_id
    warmup.train_copying(
        policy,
        steps=recipe.copying_steps,
        seed=recipe.seed,
        report=lambda step: report("copying", step, recipe.copying_steps),
    )
    final = warmup.imitate(
        policy,
        lessons,
        steps=recipe.warmup_steps,
        seed=recipe.seed,
        report=lambda step: report("warm-up", step, recipe.warmup_steps),
    )
    policy.to(torch.bfloat16).save_pretrained(directory, max_shard_size=FILE_SIZE)  # type: ignore[arg-type]
    return final
