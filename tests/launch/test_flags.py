"""slime's flag table: flags that its parsers would silently misread are refused."""

from __future__ import annotations

from typing import Any

import pytest

from conf.errors import ConfigError
from launch import flags
from launch.pack_flags import pack
from launch.plan import plan_job
from tests.fakes.cluster_config import LAUNCHERS, MODELS, SCENARIOS, a_config


def faults(*words: str) -> list[str]:
    found, disorder = flags.parse(words)
    return disorder + flags.check(found)


def test_the_table_has_every_flag_of_the_parsers_and_is_small() -> None:
    assert len(flags.load_flags()) == 1431
    assert flags.TABLE.stat().st_size < 300_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-tokens-per-gpus", "1"], "did you mean --max-tokens-per-gpu?"),
        (["--colocate", "1"], "--colocate takes no value"),
        (["--save-interval"], "--save-interval takes one value, and has none"),
        (["--save-interval", "1", "2"], "--save-interval takes one value, and has 1 2"),
        (["--save-interval", "often"], "must be a whole number"),
        (["--lr", "small"], "must be a number"),
        (["--advantage-estimator", "gpro"], "must be one of grpo, gspo"),
        (["--attention-backend", "AttnBackend.flash"], "must be one of flash, fused"),
        (["--train-env-vars", "{"], "must be JSON"),
        (["--colocate", "--colocate"], "--colocate is given twice"),
        (["colocate"], "colocate follows no flag"),
        (["--sglang-tool-call-parser", "qwen4"], "must be one of auto"),
        (["--wandb-key", "k"], "would write a secret to a file"),
        (["--router-oracle-password", "k"], "would write a secret to a file"),
    ],
)
def test_a_flag_that_the_parsers_would_misread_is_refused(words: list[str], message: str) -> None:
    assert any(message in fault for fault in faults(*words)), faults(*words)


def test_good_flags_pass() -> None:
    assert not faults("--rollout-top-k", "-1", "--rollout-stop-token-ids", "1", "2", "--lr=1e-6")
    assert not faults("--attention-backend", "flash", "--balance-data", "--train-env-vars", "{}")


def test_extra_flags_join_the_derived_ones() -> None:
    plan = plan_job(a_config("launch.extra_flags=[--update-weight-buffer-size,4294967296]"))
    assert plan.arguments["--update-weight-buffer-size"] == ("4294967296",)


def test_a_misspelt_or_contradicting_extra_flag_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_job(a_config("launch.extra_flags=[--use-tiss,--save-interval,3]"))
    first, second = sorted(caught.value.faults)
    assert "--save-interval is set by the configuration (10)" in first
    assert "--use-tiss is not a flag" in second
    assert "did you mean --use-tis?" in second


@pytest.mark.parametrize("model", MODELS)
def test_every_model_scenario_and_launcher_gives_arguments_that_the_parsers_accept(
    model: str,
) -> None:
    for scenario in SCENARIOS:
        ours, other = a_config(model=model), a_config(f"scenario={scenario}")
        for launch in LAUNCHERS:
            there = a_config(launch=launch).launch
            sections = {"scenario": other.scenario, "launch": there}
            plan = plan_job(ours.model_copy(update=sections))
            assert flags.check(plan.arguments) == []
            assert flags.check(plan.conversion) == []


def test_packing_keeps_arity_type_and_choices() -> None:
    source: dict[str, dict[str, Any]] = {
        "--b": {"kind": "scalar", "nargs": None, "type": "enum", "choices": ["E.x", "E.y"]},
        "--a": {"kind": "bool", "nargs": None, "type": None, "choices": None},
        "--c": {"kind": "list", "nargs": "+", "type": "int", "choices": None},
    }
    assert pack(source) == {
        "--a": ["0", "str"],
        "--b": ["1", "str", "x", "y"],
        "--c": ["+", "int"],
    }
