"""Every script of slime's with a model's arguments is what the converter makes of its checkpoint.

``slime_scripts.json`` holds the arguments that the 39 files of ``scripts/models`` define at
slime's commit 624b824a (21 August 2026), read by bash, and the keys of the public checkpoints'
``config.json`` that describe their architecture ("from the script": where no file was at hand, the
values that slime's own check of the file would require). Arguments are equal if every flag has the
same value, given or by Megatron's default; ``NO_EFFECT`` and ``DEFECTS`` name the rest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch import flags
from launch.checkpoint_config import CheckpointConfigError, convert_config
from launch.megatron_arguments import megatron_arguments

SCRIPTS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("slime_scripts.json").read_text("utf-8")
)
PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("published_configs.json").read_text("utf-8")
)
NO_CONVERTER = {"qwen3.5-35B-A3B-vl": "trains the model with images, which a coding agent has not"}
DEFAULTS = {
    "norm-epsilon": 1e-5,
    "rotary-percent": 1.0,
    "rotary-base": 10000.0,
    "rotary-scaling-factor": 1.0,
    "mscale": 1.0,
    "moe-token-drop-policy": "probs",
    "moe-router-load-balancing-type": "aux_loss",
    "moe-router-score-function": "softmax",
    "moe-aux-loss-coeff": 0.0,
    "position-embedding-type": "learned_absolute",
}
"""Megatron's, from its parser."""
NO_EFFECT = {
    "seq-length": "slime packs samples of any length",
    "max-position-embeddings": "bounds nothing with a rotary embedding",
    "no-position-embedding": "means nothing beside a rotary embedding (arguments.py)",
    "make-vocab-size-divisible-by": "pads rows that no token has; an export cuts them off",
    "no-masked-softmax-fusion": "a kernel of unfused attention, which nothing here uses",
    "attention-softmax-in-fp32": "launch.slime_arguments gives it to all models",
    "moe-token-dispatcher-type": "of the layout: model.layout.dispatcher",
    "mtp-num-layers": "of speculative decoding that is trained: model.speculative",
}
"""Flags that a script has, or lacks, without another model."""
WITHOUT_EFFECT_THERE = {
    # Latent attention has no biases, whatever the flag (multi_latent_attention.py).
    "glm4.7-30B-A3B": {"add-qkv-bias"},
    # One of one group: every expert. YaRN's scales act only where it stretches.
    "moonlight": {"moe-router-num-groups", "moe-router-group-topk", "mscale-all-dim"},
    # Latent attention has dimensions of its own (qk-head-dim, v-head-dim).
    "kimi-k2": {"moe-router-num-groups", "moe-router-group-topk", "kv-channels"},
    "kimi-k2-thinking": {"moe-router-num-groups", "moe-router-group-topk", "kv-channels"},
    # The factor of latent attention; grouped attention has another, which slime does not set.
    "llama3.1-8B-Instruct": {"rotary-scaling-factor"},
    "llama3.2-3B-Instruct": {"rotary-scaling-factor"},
    "llama3.2-3B-Instruct-amd": {"rotary-scaling-factor"},
}
DEFECTS: dict[str, dict[str, tuple[object, object]]] = {
    # The checkpoint's base is 1,000,000; slime's own check refuses the script's.
    "qwen2.5-1.5B": {"rotary-base": (1000000.0, None)},
    # The script leaves Megatron's 0.001, so training would move the bias that the checkpoint has.
    "minimax-m2": {
        "moe-router-bias-update-rate": (0.0, None),
        "moe-router-load-balancing-type": ("seq_aux_loss", "none"),
    },
}
"""By script: flags with our value and its value (None: Megatron's default), where ours is right."""
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "kimi-k2": ("beta_fast=1.0, but Megatron supports only 32", {"beta_fast": 32}),
    "llama3.2-3B-Instruct": ("factor=32.0, but Megatron supports only 8.0", {"factor": 8.0}),
    "llama3.2-3B-Instruct-amd": ("factor=32.0, but Megatron supports only 8.0", {"factor": 8.0}),
}
"""Scripts whose rotary embedding is not the checkpoint's, with the embedding that they train."""


def config_of(name: str) -> dict[str, Any]:
    config = SCRIPTS[name]["config"]
    found: dict[str, Any] = PUBLISHED[config] if isinstance(config, str) else config
    return found


def number(value: object) -> object:
    try:
        return float(str(value))
    except ValueError:
        return value


def normal(arguments: dict[str, Any]) -> dict[str, object]:
    """Return the values that act, without defaults and what has no effect."""
    given = {name: number(value) for name, value in arguments.items() if name not in NO_EFFECT}
    if given.pop("use-rotary-position-embeddings", False):
        given["position-embedding-type"] = "rope"
    if "multi-latent-attention" not in given:
        given.setdefault("kv-channels", given["hidden-size"] / given["num-attention-heads"])  # type: ignore[operator]
    return {name: value for name, value in given.items() if DEFAULTS.get(name) != value}


def ours(config: dict[str, Any]) -> dict[str, Any]:
    made = megatron_arguments(convert_config(config))
    assert flags.check(made) == []
    return {
        name.removeprefix("--"): list(words) if len(words) > 1 else words[0] if words else True
        for name, words in made.items()
    }


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in NO_CONVERTER])
def test_a_checkpoint_s_config_json_becomes_the_arguments_of_slime_s_script(name: str) -> None:
    config = config_of(name)
    if name in REFUSED:
        message, trained = REFUSED[name]
        with pytest.raises(CheckpointConfigError, match=message):
            convert_config(config)
        config = config | {"rope_scaling": config["rope_scaling"] | trained}
    made, script = normal(ours(config)), normal(SCRIPTS[name]["arguments"])
    different = {
        flag: (made.get(flag), script.get(flag))
        for flag in made.keys() | script.keys()
        if made.get(flag) != script.get(flag) and flag not in WITHOUT_EFFECT_THERE.get(name, set())
    }
    assert different == DEFECTS.get(name, {})


def test_every_exception_is_still_one() -> None:
    given = {flag for script in SCRIPTS.values() for flag in script["arguments"]}
    assert NO_EFFECT.keys() <= given
    for name, exempt in WITHOUT_EFFECT_THERE.items():
        assert exempt <= SCRIPTS[name]["arguments"].keys()
    assert (REFUSED.keys() | DEFECTS.keys() | NO_CONVERTER.keys()) <= SCRIPTS.keys()
    assert len(SCRIPTS) == 39
