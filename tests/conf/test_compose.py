"""Compose configurations: every YAML file, every kind of fault, all faults at once."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.compose import (
    _composed,
    _load_defaults,
    _read_with_hydra,
    changed_keys,
    compose,
    from_json,
    to_json,
    to_yaml,
)
from conf.errors import ConfigError, ExitCode
from conf.exact_tokens import ENDPOINTS
from conf.implied_defaults import OTHER_SECTIONS
from conf.keys import (
    CONF_DIR,
    choice_content,
    choice_file,
    default_choices,
    flatten,
    groups,
    set_config_dir,
)
from conf.schema import Config
from conf.schema_defaults import fill
from conf.sections.cluster_model import TableModel

SLIME = [
    *("trainer=slime", "model=qwen3_30b_a3b", "model.path=weights", "launch=ssh"),
    *("launch.shared_dir=/shared", "launch.hosts_file=hosts", "task=jsonl", "task.path=t.jsonl"),
]
NEEDED = {
    ("faults", "file"): [f"faults.path={CONF_DIR / 'faults' / 'slow.yaml'}"],
    ("engine", "sglang"): [
        *("engine.url=http://127.0.0.1:30000", "model.tokenizer=tok", "model.renderer=qwen3")
    ],
    ("engine", "vllm"): [
        *("engine.url=http://127.0.0.1:8000", "model.tokenizer=tok", "model.renderer=qwen3"),
        "run.steps=0",
    ],
    ("engine", "openai"): ["engine.url=http://x", "engine.model=name", "run.steps=0"],
    ("engine", "anthropic"): ["engine.url=http://x", "engine.model=name", "run.steps=0"],
    ("model", "endpoint"): [
        "engine=openai",
        "engine.url=http://x",
        "engine.model=name",
        "run.steps=0",
    ],
    ("engine", "sglang_launch"): ["model.tokenizer=tok", "model.renderer=qwen3"],
    ("task", "jsonl"): ["task.path=tasks.jsonl"],
    ("task", "mixture"): ["task.sets=[{path:a.jsonl}]"],
    ("eval_task", "jsonl"): ["eval_task.path=rows.jsonl"],
    ("reward", "custom"): ["reward.target=my_rewards:Brief"],
    ("sandbox", "custom"): ["sandbox.target=my_cloud:Machines"],
    ("harness", "custom"): ["harness.target=my_agents:Agent"],
    ("harness", "command"): ["harness.run=agent"],
    ("eval_task", "mixture"): ["eval_task.sets=[{path:rows.jsonl}]"],
    ("model", "local"): ["model.path=weights", "model.tokenizer=tok", "model.renderer=qwen3"],
    ("sandbox", "e2b"): ["gateway.public_url=https://g.example", "gateway.port=8080"],
    **{
        ("model", name): ["model.path=weights"]
        for name in get_args(TableModel.model_fields["kind"].annotation)
    },
    ("model", "checkpoint"): ["model.path=weights", "model.renderer=qwen3"],
    ("trainer", "slime"): SLIME[1:],
    ("launch", "ssh"): [*SLIME[4:6], *SLIME[:3], *SLIME[6:]],
    ("launch", "slurm"): [SLIME[4], *SLIME[:3], *SLIME[6:]],
    ("launch", "ray"): [SLIME[4], "launch.head=10.0.0.1", *SLIME[:3], *SLIME[6:]],
    ("launch", "kubernetes"): [
        *(SLIME[4], "launch.image=i", "launch.claim=c"),
        *SLIME[:3],
        *SLIME[6:],
    ],
    ("sandbox", "docker"): ["gateway.public_url=http://172.17.0.1:8080", "gateway.port=8080"],
    ("sandbox", "podman"): ["gateway.public_url=http://172.17.0.1:8080", "gateway.port=8080"],
}
"""Keys without a default, by the choice that has them."""

CHOICES = [(group, choice) for group, names in groups().items() for choice in names]


def faults(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose(list(overrides))
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value.faults


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_yaml_composes(group: str, choice: str) -> None:
    config = compose([f"{group}={choice}", *NEEDED.get((group, choice), [])])
    assert getattr(config, group).kind == choice_content(group, choice)["kind"]


@pytest.mark.parametrize(("group", "choice"), sorted(NEEDED))
def test_every_key_without_a_default_is_named(group: str, choice: str) -> None:
    found = faults(f"{group}={choice}")
    wanted = [line.partition("=")[0] for line in NEEDED[group, choice]]
    named = [fault for key in wanted for fault in found if fault.startswith(f"{key}")]
    assert sorted(named) == sorted(found)


def test_every_choice_of_one_group_composes_with_one_of_another() -> None:
    exact = [each for each in groups()["engine"] if each not in ENDPOINTS]
    models = [each for each in groups()["model"] if each != "endpoint"]
    pairs = [(each, "endpoint") for each in ENDPOINTS]
    # engines are fewer; other pairs are refused: test_engines.py
    for first, second in [*pairs, *zip(itertools.cycle(exact), models, strict=False)]:
        needed = NEEDED.get(("engine", first), []) + NEEDED.get(("model", second), [])
        needed = [line for line in needed if not line.startswith("engine=")]
        config = compose([f"engine={first}", f"model={second}", *needed])
        assert (config.engine.kind, config.model.kind) == (first, second)


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_a_file_holds_only_what_differs_from_the_schema(group: str, choice: str) -> None:
    content = {k: v for k, v in choice_file(group, choice).items() if k != OTHER_SECTIONS}
    bare = dict(flatten(fill(group, {"kind": content["kind"]})))
    said_twice = {
        key for key, value in flatten(content) if key != "kind" and bare.get(key, ...) == value
    }
    assert not said_twice


def test_hydra_reads_the_built_in_files_as_we_do(tmp_path: Path) -> None:
    choices = default_choices() | {"model": "glm4_7_flash", "harness": "aider", "launch": "slurm"}
    set_config_dir(tmp_path)
    try:
        assert _read_with_hydra(choices) == _load_defaults(choices)
    finally:
        set_config_dir(None)


def test_all_faults_are_reported_at_once() -> None:
    found = faults(
        "run.stepz=3",
        "egine=sglang",
        "engine=sglan",
        "scenario=lineal",
        "run.steps=abc",
        "sampling.temperature=-1",
        "foo",
        "engine.url=x",
        "trainer.betas=[1,2,3]",
        "run.eval_tasks=200",
        "run.rollouts_per_task=${nope}",
    )
    assert len(found) == 11
    for part in (
        "run.stepz is not a key: did you mean run.steps?",
        "egine is not a key: did you mean engine?",
        "engine=sglan is not a choice: did you mean engine=sglang? "
        "(choices: anthropic, embedded, openai, sglang, sglang_launch, vllm)",
        "scenario=lineal is not a choice: did you mean scenario=linear?",
        "run.steps=abc must be a whole number",
        "sampling.temperature=-1 must be greater than 0",
        "'foo' is not KEY=VALUE",
        "engine.url belongs to engine=anthropic or openai or sglang or vllm, but engine=embedded",
        "trainer.betas=[1,2,3] must be two numbers of at least 0 and less than 1",
        "run.eval_tasks=200 is more than task.held_out_tasks=128",
        "run.rollouts_per_task: Interpolation key 'nope' not found",
    ):
        assert [fault for fault in found if part in fault], part


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("steps=3", "steps is not a key: did you mean run.steps?"),
        ("trainr.learning_rte=1", "did you mean trainer.learning_rate?"),
        ("trainer.lr=1", "did you mean trainer.learning_rate?"),
        ("trainr.lr=1", "did you mean trainer.learning_rate?"),
        ("lr=1", "did you mean trainer.learning_rate?"),
        ("trainer.min_lr=1", "did you mean trainer.min_learning_rate?"),
        ("trainer.wd=1", "did you mean trainer.weight_decay?"),
        ("trainer.gradclip=1", "did you mean trainer.grad_clip?"),
        ("trainer.lora_rank=1", "did you mean trainer.lora.rank?"),
        ("trainer.temperature=1", "did you mean sampling.temperature?"),
        ("run.lr=1", "run.lr is not a key: run has dir, steps"),
        ("trainer.kl.coef=1", "trainer.kl.coef is not a key: trainer.kl has weight, estimator"),
        ("run.xyzzy=1", "run.xyzzy is not a key: run has dir, steps"),
        ("xyzzy=1", "xyzzy is not a key: `agentrl show` lists every key"),
        ("+run.xyzzy=1", "run.xyzzy is not a key: run has dir, steps"),
        ("+run.steps=1", "run.steps exists already; drop the +"),
        ("~run.steps", "run.steps has no value: add run.steps=…"),
        ("~run.xyzzy", "run.xyzzy is not a key"),
        ("~engine", "a run cannot do without engine"),
        ("+engine=embedded", "write engine=CHOICE"),
        ("engine=null", "engine=null is not a choice"),
        ("engine={port:1}", "choose with engine=CHOICE, set engine.KEY=VALUE"),
        ("engine.kind=sglang", "the choice of a group is made with engine=sglang"),
        ("run=5", "run is a section; set its keys, e.g. run.dir=…"),
        ("run={steps:1,xyzzy:2}", "run.xyzzy is not a key"),
        ("run.steps=1,2", "is a sweep, which only `agentrl run` takes"),
        ("run.steps=", "run.steps= has no value: write run.steps=null for none"),
        ("run.steps=[1", "cannot be read"),
        ("run.steps", "'run.steps' is not KEY=VALUE"),
        ("=3", "'=3' is not KEY=VALUE"),
        ("run.steps=1.5", "run.steps=1.5 must be a whole number"),
        ("run.steps=true", "run.steps=true must be a whole number"),
        ("run.steps='3'", "run.steps=3 must be a whole number"),
        ("run.steps=-1", "run.steps=-1 must be at least 0"),
        ("run.steps=null", "run.steps=null must be a whole number"),
        ("run.dir=12", "run.dir=12 must be text: quote it"),
        ("trainer.normalize_std=1", "must be true or false"),
        ("trainer.learning_rate=inf", "must be a finite number"),
        ("trainer.learning_rate=nan", "must be"),
        ("trainer.betas=[0.9,1.5]", "trainer.betas=[0.9,1.5] must be two numbers of at least"),
        ("trainer.betas=[0.9]", "must be two numbers of at least 0 and less than 1, such as [0.9,"),
        ("trainer.betas=3", "less than 1, such as [0.9,0.95]"),
        ("trainer.correction.mask_outside=[0.5]", "two numbers above 0 such as [0.5,2.0], or null"),
        ("trainer.recompute=maybe", "trainer.recompute=maybe must be auto, true or false"),
        ("trainer.recompute=1", "trainer.recompute=1 must be auto, true or false"),
        ("trainer.device=cdua", "must be auto, cpu or cuda: did you mean cuda?"),
        ("sampling.top_k=0", "must be -1 (the whole vocabulary) or at least 1"),
        ("gateway.port=70000", "must be at most 65535"),
        ("hydra.run.dir=x", "agentrl's groups are"),
        ("+hydra.run.dir=x", "agentrl's groups are"),
        ("hydra/launcher=basic", "agentrl's groups are"),
        ("engine@model=sglang", "write engine=CHOICE"),
        ("trainer.minibatches=65", "lower trainer.minibatches"),
        ("sampling.max_new_tokens=1024", "leaves no room for a prompt"),
        ("engine.cache_tokens=1000", "one long rollout would not fit"),
        ("run.rollouts_per_task=1", "raise run.rollouts_per_task"),
        ("trainer.min_group=9", "raise run.rollouts_per_task or lower trainer.min_group"),
        ("run.tasks_per_step=513", "is more than task.train_tasks=512"),
        (
            "reward=test",
            "reward=test is not a choice: did you mean reward=tests? (choices: custom, tests;",
        ),
        ("fanout=segment", "did you mean fanout=segments? (choices: collapse, segments)"),
        ("fanout.reward=unifrom", "did you mean uniform?"),
        ("fanout.max_segments=0", "fanout.max_segments=0 must be"),
        ("fanout.max_segment_tokens=96", "raise fanout.max_segment_tokens"),
        ("rollout.deadlines.guard_s=209", "grade_s + teardown_s = 210: an attempt within its"),
    ],
)
def test_a_fault_names_its_key_and_its_fix(override: str, fault: str) -> None:
    found = faults(override)
    assert len(found) == 1
    assert fault in found[0]


def test_an_engine_url_without_a_scheme_is_refused() -> None:
    (found,) = faults("engine=sglang", "engine.url=localhost", "model=tiny")
    assert found == "engine.url=localhost must be a base URL such as http://127.0.0.1:30000"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:secret@127.0.0.1:30000", "http://***@127.0.0.1:30000"),
        ("http://127.0.0.1:30000/?key=secret", "http://127.0.0.1:30000/?***"),
        ("http://127.0.0.1:30000/v1#secret", "http://127.0.0.1:30000/v1#***"),
    ],
)
@pytest.mark.parametrize("key", ["engine.url", "engine.workers"])
def test_a_secret_in_a_url_is_refused_and_not_repeated(key: str, url: str, shown: str) -> None:
    good = "engine.url=http://127.0.0.1:30000"
    given = f"'{url}'" if key == "engine.url" else f"['{url}']"
    (found,) = faults("engine=sglang", "model=tiny", good, f"{key}={given}")
    assert found.startswith(key)
    assert f"={shown} must hold no user, password or query" in found
    assert "AGENTRL_ENGINE_KEY" in found
    assert "secret" not in found.replace("secrets belong", "")


def test_the_embedded_engine_needs_weights() -> None:
    (found,) = faults("model=local", "model.tokenizer=tok", "model.renderer=qwen3")
    assert found.startswith("model.path=null leaves engine=embedded without weights")


def test_fanout_collapse_has_no_key_for_several_segments() -> None:
    (found,) = faults("fanout=collapse", "fanout.reward=uniform")
    assert found.startswith("fanout.reward belongs to fanout=segments, but fanout=collapse")


def test_a_segment_cap_is_not_checked_without_training() -> None:
    assert compose(["run.steps=0", "fanout.max_segment_tokens=1"]).fanout.max_segment_tokens == 1


def test_rules_between_keys_are_checked_despite_a_fault_in_another_key() -> None:
    found = faults("run.eval_tasks=200", "seed=-1")
    assert len(found) == 2
    assert any("task.held_out_tasks" in fault for fault in found)


def test_a_rule_is_not_checked_on_a_faulty_key() -> None:
    assert len(faults("run.eval_tasks=200", "task.held_out_tasks=-5")) == 1


def test_values_and_sections_and_interpolations_are_accepted() -> None:
    config = compose(
        ["run={steps:3,eval_tasks:0}", "seed=7", "run.keep_checkpoints=${seed}", "++run.steps=4"]
    )
    assert (config.run.steps, config.run.eval_tasks, config.run.keep_checkpoints) == (4, 0, 7)


def test_a_mapping_whose_names_the_user_chooses_can_be_emptied() -> None:
    harness = compose(["harness=codex", "harness.env.A='1'", "~harness.env.A"]).harness.model_dump()
    assert harness["env"] == {}
    with pytest.raises(ConfigError, match=r"Could not delete .*harness.env.A"):
        compose(["harness=codex", "~harness.env.A"])


def test_values_are_set_without_reading_the_files_of_the_same_choices_again() -> None:
    compose(["scenario=linear"])
    before = _composed.cache_info()
    assert [compose(["scenario=linear", f"seed={n}"]).seed for n in (3, 4)] == [3, 4]
    assert compose(["scenario=linear"]).seed == 0, "what was read stays as it was"
    assert _composed.cache_info().misses == before.misses


def test_the_last_of_two_overrides_wins() -> None:
    assert compose(["seed=1", "seed=2"]).seed == 2


def test_the_design_example_of_the_gateway_composes() -> None:
    line = (
        "engine=sglang engine.url=http://127.0.0.1:30000 model.tokenizer=DIR model.renderer=qwen3 "
        "gateway.port=0"
    )
    config = compose(line.split())
    assert config.model.tokenizer == Path("DIR")


def test_json_is_accepted_back() -> None:
    config = compose(["run.dir=x/y", "seed=3", "trainer.learning_rate=1e-5"])
    assert from_json(to_json(config), source="test") == config


def test_json_with_another_choice_is_accepted_back() -> None:
    config = compose(["engine=sglang", "engine.url=https://h/v1", "model=tiny"])
    assert from_json(to_json(config), source="test") == config


def test_an_override_wins_over_stored_json() -> None:
    text = to_json(compose(["seed=3", "engine.port=5"]))
    changed = from_json(
        text, source="test", overrides=["seed=4", "engine=sglang", "engine.url=http://h"]
    )
    assert changed.seed == 4
    assert changed.engine.kind == "sglang"


def test_stored_json_is_checked_like_the_command_line() -> None:
    content = json.loads(to_json(compose([])))
    content["run"]["stepz"] = 1
    content["seed"] = "three"
    content["scenario"]["kind"] = "lineal"
    content["reward"] = "tests"
    with pytest.raises(ConfigError) as caught:
        from_json(json.dumps(content), source="file.json")
    assert sorted(fault.partition(" ")[0] for fault in caught.value.faults) == [
        "run.stepz",
        "scenario=lineal",
        "seed=three",
    ]


@pytest.mark.parametrize("text", ["", "{", "[1]", "3"])
def test_stored_text_that_is_not_an_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"file\.json"):
        from_json(text, source="file.json")


names = st.text(
    alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=20
).filter(lambda text: text.strip() and text != "???")


DEFAULT = cache(lambda: to_json(compose([])))


@settings(max_examples=12)
@given(name=names, rate=st.floats(min_value=1e-3, max_value=1.0), seed=st.integers(0, 2**40))
def test_any_value_survives_a_round_trip_through_json(name: str, rate: float, seed: int) -> None:
    before = json.loads(DEFAULT())
    before["run"]["dir"] = name
    before["trainer"]["learning_rate"] = rate
    before["seed"] = seed
    config = from_json(json.dumps(before), source="test")
    assert config == Config.model_validate_json(json.dumps(before), strict=True)


def test_yaml_shows_every_key() -> None:
    shown = to_yaml(compose([]))
    for key in ("seed: 0", "  steps: ", "  learning_rate: ", "kind: embedded"):
        assert key in shown


@pytest.mark.parametrize("task", ["task=jsonl", "task=mixture"])
def test_tasks_that_are_neither_trained_nor_measured_are_refused(task: str) -> None:
    where = "task.path=a.jsonl" if task == "task=jsonl" else "task.sets=[{path:a.jsonl}]"
    model = ["model=local", "model.path=w", "model.tokenizer=w", "model.renderer=qwen3"]
    engine = ["engine=sglang", "engine.url=http://127.0.0.1:9"]
    lines = [task, where, "eval_task=swebench", "run.eval_tasks=3", *model, *engine]
    config = compose(lines)
    assert config.task.kind != "swebench"
    with pytest.raises(ConfigError, match="neither trained nor measured"):
        compose([*lines, "task.held_out_tasks=5"])


def test_a_key_that_follows_another_is_no_change_until_it_differs() -> None:
    def changes(*lines: str) -> dict[str, object]:
        return changed_keys(compose(list(lines)).model_dump(mode="json"))

    assert changes("run.steps=7") == {"run.steps": 7}
    assert changes("run.steps=2") == {"run.steps": 2}, "half of them are warm-up"
    assert changes("trainer.learning_rate=3e-5") == {"trainer.learning_rate": 3e-5}
    both = {"run.steps": 7, "trainer.decay": "cosine", "trainer.decay_steps": 9}
    assert changes("run.steps=7", "trainer.decay=cosine", "trainer.decay_steps=9") == both
