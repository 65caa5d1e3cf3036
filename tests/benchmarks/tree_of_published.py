"""Training of a published policy's shape, with random weights, on the same step in several ways.

Each way is a trainer of its own, after another, so that its peak memory is its own. Its loss has no
ratio (``trainer.loss=reinforce``), since the policy did not sample the tokens, and its updates are
too small to change a weight.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from transformers import AutoConfig, AutoModelForCausalLM

from conf.compose import compose
from conf.sections.training import LocalTrainerConfig, TrainingPrecision
from runners.training.local import LocalTrainer
from runners.training.sample import Rollout
from tests.fakes.one_gpu import CONFIG

TINY = CONFIG | {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 4096,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {"qwen3_0_6b": CONFIG, "tiny": TINY}
"""``config.json`` of each policy; ``tiny`` is to try a command without a GPU."""
WAYS = ("rows", "tree")
WARM_UP = 2
"""Rollouts of the step before those that are timed. What is compiled after them counts as slow, and
is reported (``compiled_timed``)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of a measurement."""

    device: str
    precision: TrainingPrecision
    tokens_per_microbatch: int
    repetitions: int
    ways: Sequence[str]
    exact: bool
    """Distances are those from rows in float32, not in the same precision."""


def write_random_policy(name: str, directory: Path, device: str) -> Path:
    """Write a policy of this shape, bfloat16, made on the device."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(SHAPES[name]))
    config = AutoConfig.from_pretrained(directory)
    torch.manual_seed(0)
    with torch.device(device):
        made: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    made.save_pretrained(directory)
    return directory


def make_trainer(
    way: str, weights: Path, settings: Settings, precision: TrainingPrecision
) -> LocalTrainer:
    """Return the trainer of one way."""
    config = compose([f"trainer.device={settings.device}", "trainer.recompute=true"]).trainer
    assert isinstance(config, LocalTrainerConfig)
    changes: dict[str, Any] = {
        "precision": precision, "tokens_per_microbatch": settings.tokens_per_microbatch,
        "loss": "reinforce", "grad_clip": 1e9, "learning_rate": 1e-15, "weight_decay": 0.0,
        "minibatches": 1, "epochs": 1,
    }  # fmt: skip
    trainer = LocalTrainer(
        config.model_copy(update=changes), weights=weights, temperature=1.0, seed=0
    )
    if way == "rows":
        trainer.no_tree = "to be compared with"
    elif trainer.no_tree is not None:
        raise SystemExit(f"this policy runs no trees here: {trainer.no_tree}")
    return trainer


def measure_ways(
    weights: Path, rollouts: Sequence[Rollout], settings: Settings
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the figures of each way, one after another: the first is compared with."""
    ways = [(way, settings.precision) for way in settings.ways]
    compared: torch.Tensor | None = None
    if settings.exact:
        ways.insert(0, ("rows", "float32"))
    for way, precision in ways:
        figures, gradient = _measure(way, weights, rollouts, settings, precision)
        if compared is None:
            compared = gradient
        figures["distance"] = ((gradient - compared).norm() / compared.norm()).item()
        del gradient
        _free()
        yield way if precision == settings.precision else f"{way}, {precision}", figures


def _measure(
    way: str, weights: Path, rollouts: Sequence[Rollout], settings: Settings,
    precision: TrainingPrecision,
) -> tuple[dict[str, float], torch.Tensor]:  # fmt: skip
    _free()
    graphs, started = _count_compiled(), _clock()
    trainer = make_trainer(way, weights, settings, precision)
    figures: dict[str, float] = {"start_s": _clock() - started}
    started = _clock()
    trainer.step(rollouts[:WARM_UP])
    figures["warm_up_s"] = _clock() - started
    warm = _count_compiled()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(settings.repetitions):
        started = _clock()
        metrics = trainer.step(rollouts)
        seconds.append(_clock() - started)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    figures |= {
        "seconds": min(seconds), "positions": metrics["train/positions"],
        "nodes": metrics["train/nodes"], "flat": metrics["train/positions_flat"],
        "peak_gib": peak / (1 << 30),
        "tokens_per_s": metrics["train/positions_flat"] / min(seconds),
        "compiled": _count_compiled() - graphs, "compiled_timed": _count_compiled() - warm,
    }  # fmt: skip
    trained = trainer.weights.trained.values()
    return figures, torch.cat([p.grad.flatten() for p in trained if p.grad is not None])


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _clock() -> float:
    """Return seconds, after all that the GPU has to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _count_compiled() -> int:
    """Return how many graphs torch has compiled in this process."""
    return int(counters["stats"]["unique_graphs"])
