"""Rules of asynchronous campaigns: what they need is named before anything starts."""

from __future__ import annotations

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from runners.campaigns.overlap.run_schedule import find_limits

SGLANG = (
    *("engine=sglang", "engine.url=http://127.0.0.1:1", "model.path=/x"),
    *("model.tokenizer=/x", "model.renderer=qwen3"),
)
CORRECTED = "trainer.correction.truncate=token"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["run.overlap=step"], "set trainer.correction.truncate=token"),
        (["run.overlap=stream"], "set trainer.correction.truncate=token"),
        (["run.staleness=2"], "run.staleness=2 is of run.overlap=stream alone"),
        (["run.overlap=step", CORRECTED, "run.window=1"], "run.window=1 is of run.overlap=stream"),
        (["run.overlap=step", CORRECTED, "run.keep_checkpoints=1"], "run.keep_checkpoints to 2"),
        (["run.overlap=stream", CORRECTED, "rollout.oversample_groups=1"], "oversample_groups=0"),
        (["run.overlap=stream", CORRECTED, "run.window=5"], "run.window=5 is more than"),
        (
            ["run.overlap=stream", CORRECTED, "run.staleness=1", "run.window=2"],
            "run.window=2 is more than run.staleness=1",
        ),
    ],
)
def test_what_an_asynchronous_campaign_lacks_is_named(overrides: list[str], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    assert named in "\n".join(caught.value.faults)


def test_an_sglang_server_may_switch_weights_under_turns() -> None:
    assert compose(["run.overlap=stream", CORRECTED, *SGLANG]).run.overlap == "stream"


def test_limits_are_those_of_the_mode_and_of_the_keys() -> None:
    none, step = find_limits(compose([])), find_limits(compose(["run.overlap=step", CORRECTED]))
    assert (none.staleness, none.window, step.staleness, step.window) == (0, 0, 1, 1)
    stream = find_limits(compose(["run.overlap=stream", CORRECTED]))
    assert (stream.staleness, stream.window) == (4, 1)
    fresh = find_limits(compose(["run.overlap=stream", "run.staleness=0"]))
    assert (fresh.staleness, fresh.window) == (0, 0)
    steps = ["run.steps=9", "trainer.sft.path=/x.jsonl", "trainer.sft.steps=2"]
    assert find_limits(compose(["run.overlap=step", CORRECTED, *steps])).batches == 7
