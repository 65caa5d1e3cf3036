"""Compare losses, their gradients and advantages with TRL's GRPOTrainer, run unchanged.

    python -m tests.benchmarks.bench_trl

In an environment of its own, as TRL is no dependency: a copy of agentrl's, and there
``pip install --no-deps trl accelerate`` (``datasets`` is one of the extra ``dev``).

Both trainers have the same random Qwen3-MoE in float32, which is not the reference policy, and the
same random rollouts: prompts and answers of many lengths, with tokens of tools between sampled
ones, and logprobs of another policy than either. Ours make a whole step; TRL's ``_compute_loss`` is
called with the batch, and its ``_generate_and_score_completions`` with a ``rollout_func``. Two
things that TRL has and we have not are off: its loss of the routers' balance, and the importance
weights of its KL term. Printed is the largest difference of the gradients of all weights, relative
to the largest gradient, and the same of advantages.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from conf.compose import compose
from runners.records.record import RolloutRecord
from runners.training.advantages import StepGroups
from runners.training.local import LocalTrainer
from runners.training.sample import Sample
from tests.fakes.local_trainer import VOCAB, make_trainer
from tests.fakes.records import a_rollout
from tests.fakes.tiny_model import write_tiny_model

GROUPS, SIZE, LONGEST = 3, 4, 24
NOISE = 0.3
"""Nats between the logprobs at sampling time and those of the policy that is trained: many tokens
are clipped.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One loss in both programs."""

    name: str
    theirs: Mapping[str, Any]
    """Of ``GRPOConfig``."""
    ours: Mapping[str, Any]
    """Of the section ``trainer``."""
    stale: bool = True
    """The ratio compares with the logprobs at sampling time, else with those before the update."""


CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}
CASES = [
    Case("grpo", {"loss_type": "grpo"}, {"aggregation": "rollout"}),
    Case("bnpo", {"loss_type": "bnpo"}, {"aggregation": "token"}),
    Case("dapo", {"loss_type": "dapo"}, {"aggregation": "token"}),
    Case(
        "dr_grpo", {"loss_type": "dr_grpo"},
        {"aggregation": "constant", "aggregation_tokens": LONGEST},
    ),
    Case(
        "gspo", {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        {"loss": "gspo", "aggregation": "rollout"},
    ),
    Case("cispo", {"loss_type": "cispo", "epsilon_high": 1.28}, {
        "loss": "cispo", "aggregation": "token",
    }),
    Case("two-sided clip", {"loss_type": "grpo", "delta": 1.5}, {"clip_dual": 1.5}),
    Case("k3", {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": False}, {
        "kl": {"weight": 0.3, "estimator": "k3", "place": "loss"},
    }),
    Case("entropy bonus", {"loss_type": "bnpo", "entropy_coef": 0.1}, {
        "aggregation": "token", "entropy_bonus": 0.1,
    }),
    Case(
        "off-policy mask", {"loss_type": "grpo", "off_policy_mask_threshold": 0.02},
        {"correction": {"reject_negative_above": 0.02}}, stale=False,
    ),
]  # fmt: skip
"""``delta`` bounds the ratio where the advantage is negative, as the dual clip does."""


def make_batch(trainer: LocalTrainer, seed: int) -> tuple[list[Sample], dict[str, Tensor]]:
    """Return random rollouts of one segment each, in our form and as TRL's inputs."""
    random = np.random.default_rng(seed)
    samples, prompts = [], []
    for index in range(GROUPS * SIZE):
        prompt, answer = int(random.integers(3, 12)), int(random.integers(4, LONGEST))
        tokens = random.integers(1, VOCAB, prompt + answer).astype(np.int32)
        mask = np.arange(len(tokens)) >= prompt
        if answer > 8:  # what a tool printed
            mask[prompt + 3 : prompt + 6] = False
        unknown, advantage = np.zeros(len(tokens), np.float32), float(random.normal())
        sample = Sample(f"r{index}", tokens, mask, unknown, advantage)
        sampled = own_logprobs(trainer, sample) + NOISE * random.normal(size=len(tokens))
        samples.append(replace(sample, logprobs=(sampled * mask).astype(np.float32)))
        prompts.append(prompt)
    return samples, to_inputs(samples, prompts)


def own_logprobs(trainer: LocalTrainer, sample: Sample) -> np.ndarray:
    """Return the policy's logprob of each token, float32 [T]; 0 for the first."""
    with torch.no_grad():
        ids = torch.from_numpy(sample.tokens.astype(np.int64))
        logits = trainer.model(ids[None]).logits[0] / trainer.temperature
    chosen = logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
    return np.concatenate([[0.0], chosen.numpy()]).astype(np.float32)


def to_inputs(samples: Sequence[Sample], prompts: Sequence[int]) -> dict[str, Tensor]:
    """Return TRL's inputs: prompts padded on the left, completions on the right."""
    rows = len(samples)
    before = max(prompts)
    after = max(len(each.tokens) - start for each, start in zip(samples, prompts, strict=True))
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask")
    found = {
        name: torch.zeros(rows, before if name.startswith("prompt") else after, dtype=torch.long)
        for name in names
    }
    old = torch.zeros(rows, after)
    for row, (sample, prompt) in enumerate(zip(samples, prompts, strict=True)):
        tokens = torch.from_numpy(sample.tokens.astype(np.int64))
        answer = len(tokens) - prompt
        found["prompt_ids"][row, before - prompt :] = tokens[:prompt]
        found["prompt_mask"][row, before - prompt :] = 1
        found["completion_ids"][row, :answer] = tokens[prompt:]
        found["completion_mask"][row, :answer] = 1
        found["tool_mask"][row, :answer] = torch.from_numpy(sample.loss_mask[prompt:]).long()
        old[row, :answer] = torch.from_numpy(sample.logprobs[prompt:])
    advantages = torch.tensor([sample.advantage for sample in samples], dtype=torch.float32)
    trained = (found["tool_mask"] * found["completion_mask"]).sum()
    return {
        **found, "advantages": advantages, "old_per_token_logps": old,
        "sampling_per_token_logps": old, "num_items_in_batch": trained,
    }  # fmt: skip


def move_away(model: torch.nn.Module) -> None:
    """Change all weights a little, so that the policy is not its reference."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))


def make_theirs(weights: Path, directory: Path, theirs: Mapping[str, Any], **more: Any) -> Any:
    """Return TRL's trainer of the policy in ``weights``."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=str(directory / "trl"), use_cpu=True, bf16=False, report_to=[],
        per_device_train_batch_size=GROUPS * SIZE, num_generations=SIZE, steps_per_generation=1,
        max_completion_length=LONGEST, temperature=0.7, activation_checkpointing=False,
        router_aux_loss_coef=0.0, **{**CLIP, "beta": 0.0, **theirs},
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=str(weights), args=config, processing_class=make_tokenizer(),
        train_dataset=Dataset.from_list([{"prompt": f"t{number}"} for number in range(GROUPS)]),
        **{"reward_funcs": pay_nothing, **more},
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def pay_nothing(completions: Sequence[Any], **_: Any) -> list[float]:
    """Pay 0: a reward function."""
    return [0.0] * len(completions)


def make_tokenizer() -> Any:
    """Return a tokenizer whose word ``tN`` has id N."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = models.WordLevel({f"t{number}": number for number in range(VOCAB)}, unk_token="t0")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=tokenizer, pad_token="t0", eos_token="t0")


def compare_gradients(case: Case, weights: Path, directory: Path, seed: int) -> float:
    """Return the largest difference of a gradient, relative to the largest gradient."""
    ours = make_trainer(weights, grad_clip=1e9, learning_rate=1e-9, **case.ours)
    move_away(ours.model)
    theirs = make_theirs(weights, directory, case.theirs)
    theirs.model.load_state_dict(ours.model.state_dict())
    samples, inputs = make_batch(ours, seed)
    if theirs.beta:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            reference, *_ = theirs._get_per_token_logps_and_entropies(
                theirs.ref_model, ids, seen, inputs["completion_ids"].size(1)
            )
        inputs["ref_per_token_logps"] = reference
    if not case.stale:
        del inputs["old_per_token_logps"]
    theirs.model.train()
    theirs._compute_loss(theirs.model, inputs).backward()
    ours.step([[sample] for sample in samples])
    named = dict(theirs.model.named_parameters())
    pairs = [(p.grad, named[name].grad) for name, p in ours.model.named_parameters()]
    largest = max(float(found.abs().max()) for _, found in pairs if found is not None)
    return max(
        float((zero(own, other) - zero(other, own)).abs().max()) / largest for own, other in pairs
    )


def zero(gradient: Tensor | None, other: Tensor | None) -> Tensor:
    """Return a gradient, or zeros where there is none."""
    if gradient is not None:
        return gradient
    return torch.zeros(()) if other is None else torch.zeros_like(other)


# Advantages. TRL divides variances by n − 1 and adds 1e-4 to standard deviations, we divide them by
# n: rewards and weights in the thousands make the 1e-4 vanish, and √((n − 1) / n) is the rest.
ADVANTAGES: dict[str, tuple[Mapping[str, Any], float]] = {
    "grpo": ({"scale_rewards": "group"}, math.sqrt((SIZE - 1) / SIZE)),
    "dr_grpo": ({"scale_rewards": "none"}, 1.0),
    "gdpo": (
        {"multi_objective_aggregation": "normalize_then_sum"},
        math.sqrt((GROUPS * SIZE - 1) / (GROUPS * SIZE)),
    ),
}
"""Keys of TRL, and theirs divided by ours."""


def compare_advantages(name: str, weights: Path, directory: Path, seed: int) -> float:
    """Return the largest difference of an advantage, relative to the largest, after the factor."""
    theirs, factor = ADVANTAGES[name]
    weighed = [1000.0, 250.0] if name == "gdpo" else [1.0, 0.25]
    random = np.random.default_rng(seed)
    tests = 1000 * random.integers(0, 2, GROUPS * SIZE).astype(float)
    tests[:2] = 0.0, 1000.0
    style = 1000 * random.random(GROUPS * SIZE)

    def pay_tests(completions: Sequence[Any], **_: Any) -> list[float]:
        return list(tests)

    def pay_style(completions: Sequence[Any], **_: Any) -> list[float]:
        return list(style)

    def roll_out(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [[1, 2]] * len(prompts), "completion_ids": [[3, 4, 0]] * len(prompts),
            "logprobs": [[-1.0] * 3] * len(prompts),
        }  # fmt: skip

    trainer = make_theirs(
        weights, directory, {"reward_weights": weighed, **theirs},
        reward_funcs=[pay_tests, pay_style], rollout_func=roll_out,
    )  # fmt: skip
    rows = [{"prompt": f"t{number // SIZE + 1}"} for number in range(GROUPS * SIZE)]
    found = trainer._generate_and_score_completions(rows)["advantages"].double().numpy()
    config = compose([
        *(f"trainer.advantage={name}", "reward=custom", "reward.target=own:reward"),
        *("reward.part_weights.style=0.25",),
    ])  # fmt: skip
    groups = StepGroups(config, make_records(tests, 0.25 * style))
    ours = np.array([advantage or 0.0 for _, advantage in groups.advantages]) * factor
    return float(np.abs(ours - found).max() / np.abs(found).max())


def make_records(tests: np.ndarray, style: np.ndarray) -> Iterator[RolloutRecord]:
    """Yield rollouts whose rewards have these two parts."""
    for number, (solved, styled) in enumerate(zip(tests, style, strict=True)):
        yield a_rollout(
            f"train-000001-{number // SIZE:02d}-{number % SIZE:02d}",
            reward=solved + styled, reward_parts={"tests": solved, "style": styled},
        )  # fmt: skip


def measure(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield a row per loss and per advantage: its largest difference over the seeds."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        weights = write_tiny_model(directory / "policy", vocab_size=VOCAB)
        for case in CASES:
            found = [compare_gradients(case, weights, directory, seed) for seed in range(seeds)]
            yield {"of": "gradients", "name": case.name, "difference": max(found)}
        for name in ADVANTAGES:
            found = [compare_advantages(name, weights, directory, seed) for seed in range(seeds)]
            yield {"of": "advantages", "name": name, "difference": max(found)}


def main() -> None:
    """Print the table, or JSON; exit with 1 if a difference is above 1e-5."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="batches per case")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    from trl import __version__

    rows = list(measure(options.seeds))
    if options.json:
        print(json.dumps({"trl": __version__, "rows": rows}))
    else:
        table = Table("of", "as TRL's", "largest relative difference", title=f"TRL {__version__}")
        for row in rows:
            table.add_row(row["of"], row["name"], f"{row['difference']:.1e}")
        Console().print(table)
    raise SystemExit(any(row["difference"] > 1e-5 for row in rows))


if __name__ == "__main__":
    main()
