"""Plug-ins in the configuration: names, targets, options, versions, a user's own choices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conf import targets
from conf.compose import compose, from_json, to_json
from conf.config_dir import use_config_dir
from conf.errors import ConfigError
from conf.resume import resume_config
from conf.sections.plugin import PluginConfig
from conf.sections.task import CustomRewardConfig
from conf.sections.training import LocalTrainerConfig

FORM = "package.module:Name or FILE.py:Name"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text("def brief(result, *, weight=1.0):\n    return weight\n")
    return file


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "reward").mkdir()
    yield tmp_path
    use_config_dir(None)


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    info = tmp_path / "site" / "my_rewards-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-rewards\nVersion: 1.2\n")
    (info / "top_level.txt").write_text("my_rewards\n")
    points = "[agentrl.rewards]\nbrief = my_rewards:Brief\n"
    points += "[agentrl.losses]\nppo = my_rewards:Ppo\nmine = my_rewards:Loss\n"
    (info / "entry_points.txt").write_text(points)
    (info.parent / "my_rewards.py").write_text("Brief = 1\n")
    (info / "RECORD").write_text("my_rewards.py,,\n")
    monkeypatch.syspath_prepend(str(info.parent))
    for cached in (targets.plugin_names, targets._distributions):
        cached.cache_clear()
    yield
    monkeypatch.undo()
    for cached in (targets.plugin_names, targets._distributions):
        cached.cache_clear()


def faults(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose(list(overrides))
    return caught.value.faults


def test_the_resolved_configuration_names_target_options_and_version(code: Path) -> None:
    lines = ["reward=custom", f"reward.target={code}:brief", "reward.options.weight=0.5"]
    reward = compose(lines).reward
    assert isinstance(reward, CustomRewardConfig)
    assert (reward.target, reward.options) == (f"{code}:brief", {"weight": 0.5})
    assert str(reward.version).startswith("sha256:")


def test_the_file_of_a_target_is_stored_by_its_absolute_path(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(code.parent)
    code.with_name("ü: v2.py").write_bytes(code.read_bytes())
    for name in ("mine.py", "ü: v2.py"):
        advantage = compose([f"trainer.advantage={{target: '{name}:brief'}}"]).trainer.advantage
        assert isinstance(advantage, PluginConfig)
        assert advantage.target == f"{code.with_name(name)}:brief"
        assert advantage.version is not None


@pytest.mark.parametrize(
    "lines",
    [
        ["trainer.advantage={target: 'm.n:Z', options: {k: [1, {deep: null}]}}"],
        ["reward=custom", "reward.target=m:Z", "reward.options={a: {b: 'x, y'}, c: 1.5}"],
        ["fanout.reward=m:Z"],
        ["task=jsonl", "task.path=rows.csv", "task.format=m:Z", "task.grader={target: 'm:G'}"],
        ["task=mixture", "task.sets=[{path: a, format: 'm:Z'}]"],
    ],
)
def test_a_stored_configuration_is_read_back_as_it_was(lines: list[str]) -> None:
    config = compose(lines)
    assert from_json(to_json(config), source="here") == config


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("trainer.advantage=gpro", "trainer.advantage=gpro is not known: did you mean grpo?"),
        ("fanout.reward=m", f"fanout.reward=m is not known: (names: copy, uniform, token_share, "
         f"final_only, root_only; your own: {FORM})"),
        ("trainer.advantage='m n:Z'", f"trainer.advantage.target=m n:Z must be {FORM}"),
        ("trainer.advantage={targt: x}", "trainer.advantage.targt is not a key"),
        ("trainer.advantage={options: {}}", "trainer.advantage.target has no value"),
        ("reward.options.weight=1", "reward.options.weight belongs to reward=custom"),
        ("trainer.advantage.options.k=1", "trainer.advantage.options.k is not a key"),
    ],
)  # fmt: skip
def test_a_wrong_plugin_is_refused_by_its_key(line: str, fault: str) -> None:
    assert any(found.startswith(fault) for found in faults(line)), faults(line)


def test_a_mistyped_key_of_a_plugin_is_no_option() -> None:
    (found,) = faults("reward=custom", "reward.target=m:Z", "reward.optons.weight=1")
    assert found == "reward.optons.weight is not a key: did you mean reward.options?"


def test_a_target_is_a_choice_of_its_group(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code.parent / "below").mkdir()
    monkeypatch.chdir(code.parent / "below")
    reward = compose(["reward=../mine.py:brief", "reward.options.weight=2"]).reward
    assert isinstance(reward, CustomRewardConfig)
    assert reward.target == f"{code}:brief"
    assert compose(["harness=my.agents:Agent"]).harness.kind == "custom"


@pytest.mark.usefixtures("offered")
def test_an_installed_plugin_is_a_choice_by_its_name() -> None:
    reward = compose(["reward=brief", "reward.options.weight=2"]).reward
    assert isinstance(reward, CustomRewardConfig)
    assert (reward.target, reward.options) == ("my_rewards:Brief", {"weight": 2})
    assert str(reward.version).startswith("my-rewards 1.2, sha256:")
    assert faults("reward=breif") == [
        "reward=breif is not a choice: did you mean reward=brief? (choices: custom, tests, brief; "
        f"your own: {FORM})"
    ]


def test_a_file_without_a_name_and_an_option_beside_the_options_are_told_where_they_belong(
    code: Path,
) -> None:
    assert (
        f"add the name of its class or function, reward={code}:Name" in faults(f"reward={code}")[0]
    )
    mine = f"reward={code}:brief"
    assert faults(mine, "reward.weight=2") == [
        "reward.weight is not a key: did you mean reward.part_weights or reward.options.weight?"
    ]
    assert faults("reward.options.weight=2") == [
        "reward.options.weight belongs to reward=custom, but reward=tests is chosen: "
        "add reward=custom"
    ]


def test_a_folder_of_ones_own_has_choices(own: Path) -> None:
    file = own / "reward" / "mine.yaml"
    file.write_text("kind: custom\ntarget: m:Z\noptions: {weight: 2}\nversion: null\n")
    use_config_dir(own)
    config = compose(["reward=mine", "reward.options.weight=3"])
    assert isinstance(config.reward, CustomRewardConfig)
    assert config.reward.options == {"weight": 3}
    use_config_dir(None)
    assert from_json(to_json(config), source="here") == config, "the folder is not needed any more"


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("reward/tests.yaml", "kind: tests\n", "reward=tests is built in: give it another name"),
        ("reward/mine.yaml", "target: m:Z\n", "has no kind"),
        ("reward/mine.yaml", "kind: [\n", "cannot be read"),
        ("rewards/mine.yaml", "kind: custom\n", "rewards is not a group: did you mean reward?"),
        ("mine.yaml", "kind: custom\n", "has no choice: make GROUP/CHOICE.yaml in it"),
    ],
)
def test_a_folder_that_cannot_be_meant_is_refused(
    own: Path, path: str, text: str, fault: str
) -> None:
    (own / path).parent.mkdir(exist_ok=True)
    (own / path).write_text(text)
    with pytest.raises(ConfigError) as caught:
        use_config_dir(own)
    assert fault in str(caught.value)


def test_a_resumed_run_takes_other_code_only_if_told_so(code: Path) -> None:
    stored = compose(["reward=custom", f"reward.target={code}:brief"]).model_dump(mode="json")
    code.write_text("def brief(result):\n    return 0.0\n")
    kept = resume_config(stored, []).reward
    assert isinstance(kept, CustomRewardConfig)
    assert kept.version == stored["reward"]["version"], "loading it is what notices"
    other = targets.find_version(f"{code}:brief")
    taken = resume_config(stored, [f"reward.version='{other}'"]).reward
    assert isinstance(taken, CustomRewardConfig)
    assert taken.version == other


@pytest.mark.usefixtures("offered")
def test_the_options_of_a_key_s_plugin_stand_beside_its_name() -> None:
    trainer = compose(["trainer.loss={target: mine, options: {k: 2}}"]).trainer
    assert isinstance(trainer, LocalTrainerConfig)
    assert isinstance(trainer.loss, PluginConfig)
    assert (trainer.loss.target, trainer.loss.options) == ("my_rewards:Loss", {"k": 2})
    (found,) = faults("trainer.loss=mien")
    assert found.count("ppo") == 1
