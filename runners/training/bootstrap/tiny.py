"""Make the tiny policy, once per machine and set of inputs, and cache it.

Invariant: a cache entry is complete or absent, and its name is a hash of everything that determines
its content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from conf.cache import cache_root
from conf.errors import AgentrlError
from conf.sections.model import TinyModelConfig
from conf.sections.scenario import ScenarioKind
from runners.processes.atomic_write import atomic_directory

if TYPE_CHECKING:
    import tokenizers

    from runners.gateway.tokenizer import Renderer, Tokenizer
    from runners.tasks.bugfix.project import Project
    from runners.training.bootstrap.demonstrations import Chain

VERSION = 3
"""Raised whenever the same inputs give another policy."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parameters of the bootstrap that are not configurable."""

    vocabulary: int = 1000
    demonstrations: int = 2000
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


RECIPE = Recipe()
SEED = 0
"""Seed of the policy that runs start from: the same for all runs, whatever their own seed."""
Progress = Callable[[str, int, int], None]


class BootstrapError(AgentrlError):
    """The tiny policy could not be made or cached."""


def tiny_directory(
    model: TinyModelConfig,
    scenario: ScenarioKind,
    *,
    seed: int = SEED,
    recipe: Recipe = RECIPE,
) -> Path:
    """Return the policy's cache directory; it exists once the policy is complete."""
    text = json.dumps(_inputs(model, scenario, seed, recipe), sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    return (model.cache_dir or cache_root()) / "tiny" / name


def _inputs(
    model: TinyModelConfig, scenario: ScenarioKind, seed: int, recipe: Recipe
) -> dict[str, int | float | str]:
    """Return everything that determines the policy."""
    return {
        **asdict(recipe),
        "version": VERSION,
        "scenario": scenario,
        "seed": seed,
        "warmup_steps": model.warmup_steps,
        "max_context_tokens": model.max_context_tokens,
        "renderer": model.renderer,
    }


def ensure_tiny(
    model: TinyModelConfig,
    scenario: ScenarioKind,
    *,
    progress: Progress,
    seed: int = SEED,
    recipe: Recipe = RECIPE,
) -> Path:
    """Return the directory of the warmed-up policy: weights, config.json and tokenizer.

    Takes minutes unless it is cached; two processes may make it at once. ``progress`` gets a phase,
    its steps done and its steps in total. Raises BootstrapError if the cache cannot be written.
    """
    entry = tiny_directory(model, scenario, seed=seed, recipe=recipe)
    if entry.exists():
        return entry
    try:
        with atomic_directory(entry) as directory:
            _make(directory, model, scenario, seed, recipe, progress)
    except OSError as error:
        raise BootstrapError(
            f"the policy cannot be kept in {entry.parent}: {error}; set model.cache_dir to a "
            "writable directory"
        ) from error
    return entry


def _make(
    directory: Path,
    model: TinyModelConfig,
    scenario: ScenarioKind,
    seed: int,
    recipe: Recipe,
    progress: Progress,
) -> None:
    # Imported here: torch and transformers take seconds, and a cached policy needs neither.
    from runners.training.bootstrap.demonstrations import draw_episodes

    drawn = draw_episodes(
        seed,
        right=recipe.right,
        elsewhere=recipe.elsewhere,
        verify=recipe.verify,
        told=recipe.told,
        scenario=scenario,
    )
    nll = make_policy(directory, model, scenario, drawn, seed, recipe, progress)
    record = {"inputs": _inputs(model, scenario, seed, recipe), "nll": nll}
    (directory / "bootstrap.json").write_text(json.dumps(record, indent=2) + "\n")


def make_policy(
    directory: Path,
    model: TinyModelConfig,
    scenario: ScenarioKind,
    drawn: Iterator[tuple[Project, list[Chain]]],
    seed: int,
    recipe: Recipe,
    progress: Progress,
) -> dict[str, float]:
    """Write a policy that imitates episodes; return its negative log-likelihoods."""
    from transformers.utils import logging

    from runners.gateway.tokenizer import load_renderer, load_tokenizer
    from runners.training.bootstrap import demonstrations, network, vocabulary, warmup

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    def load(trained: tokenizers.Tokenizer) -> tuple[Tokenizer, Renderer]:
        vocabulary.save_tokenizer(trained, directory)
        loaded = load_tokenizer(directory)
        return loaded, load_renderer(loaded, model.renderer)

    projects, episodes = zip(*islice(drawn, recipe.demonstrations), strict=True)
    tokenizer, renderer = load(vocabulary.train_tokenizer([], size=vocabulary.BYTES_ONLY))
    # The renderer needs a tokenizer to render the prompts that the tokenizer is trained on: one of
    # bytes alone is enough for that.
    texts = demonstrations.iterate_texts(renderer, tokenizer, episodes)
    tokenizer, renderer = load(vocabulary.train_tokenizer(texts, size=recipe.vocabulary))
    chains: list[list[demonstrations.Demonstration]] = [[] for _ in episodes[0]]
    for number, episode in enumerate(episodes, start=1):
        for shown, chain in zip(chains, episode, strict=True):
            shown.append(demonstrations.demonstrate(renderer, tokenizer, chain))
        if number % 100 == 0:
            progress("demonstrations", number, len(episodes))
    policy = network.make_network(
        vocabulary=tokenizer.vocab_size, context=model.max_context_tokens, seed=seed
    )
    policy.config.eos_token_id = tokenizer.eos_token_id
    total = recipe.copying_steps + model.warmup_steps
    warmup.train_copying(
        policy,
        steps=recipe.copying_steps,
        seed=seed,
        report=lambda step: progress("warm-up", step, total),
    )
    final = warmup.imitate(
        policy,
        chains,
        [demonstrations.make_reading(tokenizer, project, scenario) for project in projects],
        steps=model.warmup_steps,
        seed=seed,
        report=lambda step: progress("warm-up", recipe.copying_steps + step, total),
    )
    policy.save_pretrained(directory)
    return {"sampled": final.sampled, "read": final.read}
