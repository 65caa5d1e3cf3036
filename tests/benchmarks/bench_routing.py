"""Measure the effect of routing replay: the mismatch of rollout and training with and without it.

    python -m tests.benchmarks.bench_routing --plot routing.png

A policy samples in an engine that differs from training: weights rounded to bf16 or int8, or 1 %
of noise on its routers. Training then computes the logprobs of the same tokens, once with its own
experts and once with the engine's. The effect depends on the entropy of the tokens: a random policy
is one extreme; the tiny policy of campaigns (or ``--model DIR``) on its own task, which is nearly
certain of every token at temperature 1, is the other. Higher ``--temperatures`` lie between.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from conf.compose import compose
from conf.sections.scenario import ScenarioKind
from conf.sections.training import LocalTrainerConfig
from runners.engines.contract import Generation, SamplingParams
from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.rounding import Precision
from runners.records.checkpoints import find_shipped_policy
from runners.records.record import IdArray
from runners.records.routing import Routing, RoutingShape, build_turn_routing
from runners.records.tokenizer import load_renderer, load_tokenizer
from runners.training.local import LocalTrainer
from runners.training.routing.shape import read_routing_shape
from runners.training.sample import Sample
from tests.fakes.tiny_model import write_tiny_model
from tests.starting_policy.demonstrations import demonstrate, draw_episodes

ENGINES = {
    "identical": Precision(),
    "bf16 weights": Precision("bfloat16"),
    "int8 weights": Precision("int8"),
    "router noise 1 %": Precision(router_noise=0.01),
}
NEW_TOKENS = 64
RANDOM_VOCABULARY = 200
SEED = 7
"""Seed of demonstrations that the policy was not trained on."""
FIGURES = ("k3", "p999_abs", "F_1.1")
COLORS = ("#0072b2", "#009e73", "#e69f00", "#d55e00")
"""Okabe and Ito's palette: distinct for every kind of colour vision."""


def random_policy(directory: Path) -> Path:
    """Write a Qwen3-MoE of random weights, the same every time."""
    return write_tiny_model(directory, vocab_size=RANDOM_VOCABULARY)


def random_prompts(count: int) -> list[list[int]]:
    """Return short prompts of random tokens."""
    rng = np.random.default_rng(SEED)
    found: list[list[int]] = rng.integers(0, RANDOM_VOCABULARY, (count, 8)).tolist()
    return found


def prompts(policy: Path, scenario: ScenarioKind, count: int) -> list[list[int]]:
    """Return prompts of the policy's own task: episodes, up to each of their turns."""
    tokenizer = load_tokenizer(policy)
    renderer = load_renderer(tokenizer, "qwen3")
    found: list[list[int]] = []
    for _, lines in draw_episodes(
        SEED, right=0.5, elsewhere=0.2, verify=0.2, told=0.0, scenario=scenario
    ):
        for line in lines:
            shown = demonstrate(renderer, tokenizer, line)
            begins = shown.sampled & ~np.roll(shown.sampled, 1)
            found += [shown.tokens[:at].tolist() for at in np.flatnonzero(begins)]
        if len(found) >= count:
            return found[:count]
    raise AssertionError("episodes have no end")


async def _generate(
    engine: EngineCore, asked: Sequence[list[int]], new_tokens: int, temperature: float
) -> list[Generation]:
    def params(seed: int) -> SamplingParams:
        return SamplingParams(
            max_new_tokens=new_tokens, sampling_seed=seed, routing_start=0, temperature=temperature
        )

    calls = (engine.generate(ids, params(at), rid=f"r{at}") for at, ids in enumerate(asked))
    try:
        return list(await asyncio.gather(*calls))
    finally:
        await engine.close()


def sample_rollouts(
    policy: Path,
    asked: Sequence[list[int]],
    precision: Precision,
    *,
    new_tokens: int = NEW_TOKENS,
    temperature: float = 1.0,
) -> list[list[Sample]]:
    """Let an engine of a precision answer prompts; return each as a rollout of one sample."""
    shape = read_routing_shape(policy)
    assert shape is not None
    longest = max(map(len, asked)) + new_tokens + 1
    engine = EngineCore(policy, max_context_tokens=longest, precision=precision)
    answers = asyncio.run(_generate(engine, asked, new_tokens, temperature))
    return [
        [_sample(f"r{at}", prompt, answer, shape, worth=1.0 if at % 2 else -1.0)]
        for at, (prompt, answer) in enumerate(zip(asked, answers, strict=True))
    ]


def _sample(
    name: str, prompt: list[int], answer: Generation, shape: RoutingShape, worth: float
) -> Sample:
    tokens: IdArray = np.concatenate([np.array(prompt, np.int32), answer.output_ids])
    assert answer.routing is not None
    rows = build_turn_routing(answer.routing, tokens, 0, shape, answer.weight_version).experts
    last = np.resize(shape.cast_ids(np.arange(shape.top_k)), (1, *rows.shape[1:]))
    mask = np.arange(len(tokens)) >= len(prompt)
    logprobs = np.zeros(len(tokens), np.float32)
    logprobs[mask] = answer.logprobs
    valid = np.arange(len(tokens)) < len(tokens) - 1
    routing = Routing(np.concatenate([rows, last]), valid)
    return Sample(name, tokens, mask, logprobs, worth, routing=routing)


def compare(
    policy: Path, rollouts: list[list[Sample]], *, temperature: float = 1.0
) -> dict[str, float]:
    """Return the mismatch with replay, and without it (``…_native``), and the disagreement."""
    config = compose(["routing_replay=rollout", "routing_replay.shadow_every=1"])
    assert isinstance(config.trainer, LocalTrainerConfig)
    trainer = LocalTrainer(
        config.trainer,
        weights=policy,
        temperature=temperature,
        seed=0,
        routing=config.routing_replay,
    )
    metrics = trainer.step(rollouts)
    return {key.removeprefix("r3/"): value for key, value in metrics.items() if "r3/" in key}


Found = dict[str, dict[str, float]]
"""By engine: the figures of ``compared``, and ``tokens``."""


def measure(policy: Path, asked: Sequence[list[int]], temperature: float = 1.0) -> Found:
    """Compare every engine with training."""
    results = {}
    for name, precision in ENGINES.items():
        rollouts = sample_rollouts(policy, asked, precision, temperature=temperature)
        tokens = sum(int(sample.loss_mask.sum()) for [sample] in rollouts)
        found = compare(policy, rollouts, temperature=temperature)
        results[name] = found | {"tokens": float(tokens)}
    return results


def show(policy: str, results: Found) -> None:
    """Print the table."""
    tokens = int(next(iter(results.values()))["tokens"])
    table = Table(title=f"{policy}, {tokens} sampled tokens: native → with replay")
    for column in ("engine", "slots that differ", "tokens that differ", "k3", "", "p99.9 |Δ|", ""):
        table.add_column(column, justify="left" if column == "engine" else "right")
    table.add_column("F(1.1)", justify="right")
    for name, found in results.items():
        k3, tail, far = ((found[f"{figure}_native"], found[figure]) for figure in FIGURES)
        table.add_row(
            name,
            f"{found['disagree_slot']:.2%}",
            f"{found['disagree_token']:.1%}",
            f"{k3[0]:.2e} → {k3[1]:.2e}",
            _times(*k3),
            f"{tail[0]:.3g} → {tail[1]:.3g}",
            _times(*tail),
            f"{far[0]:.2%} → {far[1]:.2%}",
        )
    Console(stderr=True, width=140).print(table)


def _times(before: float, after: float) -> str:
    return f"{before / after:.1f}×" if before > 1e-9 and after > 0 else "="


def plot(measured: Mapping[str, Found], path: Path) -> None:
    """Draw k3 and the tail of every policy and engine: from native down to replayed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), dpi=150, layout="constrained")
    engines = [name for name in ENGINES if name != "identical"]
    titles = {"k3": "k3", "p999_abs": "99.9th percentile of |Δ logprob|"}
    for axes, (name, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for number, (policy, results) in enumerate(measured.items()):
            places = np.arange(len(engines)) + 0.17 * (number - (len(measured) - 1) / 2)
            native = [results[engine][f"{name}_native"] for engine in engines]
            replayed = [results[engine][name] for engine in engines]
            color = COLORS[number % len(COLORS)]
            axes.vlines(places, replayed, native, color=color, linewidth=1.5)
            axes.plot(places, native, "o", color=color, markerfacecolor="white")
            axes.plot(places, replayed, "o", color=color, label=policy)
        axes.set_xticks(range(len(engines)), engines)
        axes.set_yscale("log")
        axes.set_title(title, loc="left", fontsize=10)
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "mismatch of rollout and training: ○ native, ● with routing replay", fontsize=11
    )
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path)


def main() -> None:
    """Measure, print a table and one JSON line, and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=256, help="turns that are sampled")
    parser.add_argument("--model", type=Path, help="a Qwen3-MoE with its tokenizer")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 2.0, 3.0])
    parser.add_argument("--plot", type=Path, help="PNG to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = compose([])
    made = options.model or find_shipped_policy()
    measured: dict[str, Found] = {}
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as directory:
        measured["random policy"] = measure(
            random_policy(Path(directory)), random_prompts(options.sequences)
        )
    own = prompts(made, config.scenario.kind, options.sequences)
    name = "tiny policy" if options.model is None else made.name
    for temperature in options.temperatures:
        measured[f"{name} at temperature {temperature:g}"] = measure(made, own, temperature)
    for policy, results in measured.items():
        show(policy, results)
    if options.plot:
        plot(measured, options.plot)
    print(json.dumps({"benchmark": "routing", "results": measured}))


if __name__ == "__main__":
    main()
