"""Keys that a resumed run may change."""

from __future__ import annotations

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from conf.keys import flatten, lookup
from conf.resume import CHANGEABLE, resume_config

STORED = compose(["seed=3", "run.steps=10"]).model_dump(mode="json")


def test_the_stored_configuration_is_used() -> None:
    assert resume_config(STORED, []) == compose(["seed=3", "run.steps=10"])


def test_keys_that_do_not_change_the_result_may_change() -> None:
    config = resume_config(
        STORED, ["run.steps=20", "observe.dashboard=off", "rollout.concurrency=4", "gateway.port=1"]
    )
    assert (config.seed, config.run.steps, config.rollout.concurrency) == (3, 20, 4)


def test_other_changes_are_refused_by_name() -> None:
    with pytest.raises(ConfigError) as caught:
        resume_config(STORED, ["seed=4", "run.steps=9", "trainer.learning_rate=1", "seed=4"])
    assert [fault.partition(" ")[0] for fault in caught.value.faults] == [
        "seed",
        "trainer.learning_rate",
        "run.steps",
    ]


def test_the_same_value_again_is_not_a_change() -> None:
    assert resume_config(STORED, ["seed=3"]).seed == 3


def test_a_stored_configuration_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.stepz is not a key: did you mean run\.steps\?"):
        resume_config({**STORED, "run": {**STORED["run"], "stepz": 1}}, [])


@pytest.mark.parametrize("key", CHANGEABLE)
def test_every_changeable_key_exists(key: str) -> None:
    trees = [
        STORED,
        compose(["engine=sglang", "engine.url=http://h", "model=tiny"]).model_dump(mode="json"),
        compose(["engine=sglang_launch", "model=tiny", "task=swebench"]).model_dump(mode="json"),
    ]
    assert any(lookup(tree, key.rstrip("."))[0] for tree in trees)
    assert any(leaf.startswith(key) for tree in trees for leaf, _ in flatten(tree))
