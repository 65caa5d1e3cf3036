"""Keys that a resumed run may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.absolute_paths import make_paths_absolute
from conf.compose import compose
from conf.errors import ConfigError
from conf.keys import flatten, lookup
from conf.resume import CHANGEABLE, resume_config
from conf.sections.task import JsonlTaskConfig, MixtureTaskConfig

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


STREAM = ["run.overlap=stream", "run.staleness=2", "trainer.correction.truncate=token"]


@pytest.mark.parametrize(
    ("stored", "change", "fault"),
    [
        (STREAM, "run.overlap=none", "run.overlap was stream and cannot become none in a resumed"),
        (STREAM, "run.overlap='step'", "run.overlap was stream and cannot become step in a"),
        ([], "run.overlap=stream", "run.overlap was none and cannot become stream in a resumed"),
        (STREAM, "trainer=slime", "trainer.kind was local and cannot become slime in a resumed"),
    ],
)
def test_of_a_change_that_does_not_fit_the_stored_keys_only_the_changed_key_is_named(
    stored: list[str], change: str, fault: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resume_config(compose(stored).model_dump(mode="json"), [change, "observe.dashboard=off"])
    assert len(caught.value.faults) == 1
    assert caught.value.faults[0].startswith(fault)


def test_a_faulty_value_of_a_key_that_may_change_is_named_as_ever() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.concurrency"):
        resume_config(STORED, ["rollout.concurrency=-1"])


def test_the_same_value_again_is_not_a_change() -> None:
    assert resume_config(STORED, ["seed=3"]).seed == 3


def test_relative_paths_mean_the_directory_where_the_run_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    lines = ["model.path=weights", "model.tokenizer=/tok", "faults=file", "faults.path=plan.yaml"]
    (tmp_path / "plan.yaml").write_text("seed: 0\nrules: []\n")
    task = ["task=jsonl", "task.path=rows.jsonl", "task.repositories=clones"]
    config = make_paths_absolute(compose([*lines, *task, "run.dir=runs/a"]))
    assert config.model.path == tmp_path / "weights"
    assert str(config.model.tokenizer) == "/tok"
    assert config.faults.model_dump()["path"] == tmp_path / "plan.yaml"
    assert isinstance(config.task, JsonlTaskConfig)
    assert config.task.path == str(tmp_path / "rows.jsonl")
    assert config.task.repositories == tmp_path / "clones"
    assert config.run.dir == tmp_path / "runs" / "a"
    sets = compose(["task=mixture", "task.sets=[{path:rows.jsonl},{path:owner/name}]"])
    assert isinstance(mixed := make_paths_absolute(sets).task, MixtureTaskConfig)
    assert [each.path for each in mixed.sets] == [str(tmp_path / "rows.jsonl"), "owner/name"]
    assert resume_config(make_paths_absolute(sets).model_dump(mode="json"), []).task == mixed
    hub = compose(["task=jsonl", "task.path=owner/name@main:test"])
    assert make_paths_absolute(hub) == hub, "a name on the hub is no path"
    older = compose([*lines, *task]).model_dump(mode="json")
    assert resume_config(older, []).model == config.model, "a run from before is resumed as it was"
    stored = config.model_dump(mode="json")
    assert resume_config(stored, ["model.path=weights"]) == config
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume_config(stored, []) == config
    with pytest.raises(ConfigError, match=r"model\.path was"):
        resume_config(stored, ["model.path=weights"])


def test_a_stored_configuration_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.stepz is not a key: did you mean run\.steps\?"):
        resume_config({**STORED, "run": {**STORED["run"], "stepz": 1}}, [])


@pytest.mark.parametrize("key", CHANGEABLE)
def test_every_changeable_key_exists(key: str) -> None:
    trees = [
        STORED,
        compose(["engine=sglang", "engine.url=http://h", "model=tiny"]).model_dump(mode="json"),
        compose(["engine=sglang_launch", "model=tiny", "task=swebench"]).model_dump(mode="json"),
        compose(["eval_task=swebench"]).model_dump(mode="json"),
        compose(["scenario=mixed", "routing_replay=rollout"]).model_dump(mode="json"),
    ]
    assert any(lookup(tree, key.rstrip("."))[0] for tree in trees)
    assert any(leaf.startswith(key) for tree in trees for leaf, _ in flatten(tree))


@pytest.mark.parametrize(
    "change", ["trainer.lora.rank=8", "trainer.lora.alpha=8", "trainer.lora.targets=[q_proj]"]
)
def test_adapters_cannot_change_in_a_resumed_run(change: str) -> None:
    stored = compose(["trainer.lora.rank=4"]).model_dump(mode="json")
    with pytest.raises(ConfigError, match=change.partition("=")[0]):
        resume_config(stored, [change])
