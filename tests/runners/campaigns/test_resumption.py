"""A resumed run is the run that it was, or it is refused."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.errors import AgentrlError, ExitCode
from runners.campaigns.resumption import check_resumable, rewind_store
from runners.records.checkpoints import CHECKPOINTS, OPTIMIZER, STATE, directory_name
from runners.records.routing import TurnRouting
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout, a_turn
from tests.runners.campaigns.account import account, assert_nothing_twice, differences
from tests.runners.campaigns.conftest import Miniature

STEPS = 3


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of three finished steps with the checkpoints of the last two."""
    make_run(tmp_path / "run")
    return tmp_path / "run"


def make_run(run_dir: Path) -> None:
    """Write a run as a campaign leaves it, but for the tensors of its checkpoints."""
    with RunStore.create(run_dir, CONFIG) as store:
        for step in range(1, STEPS + 1):
            session = f"train-{step:06d}-00-00-a0"
            store.begin_step(step, ["task"])
            store.add_session(session, {})
            for index in range(3):
                store.add_turn(a_turn(session, index))
            store.put_rollout(a_rollout(step=step, session_id=session))
            store.finish_step(step, {})
        run_id = store.run_id
    for step in (STEPS - 1, STEPS):
        write_checkpoint(run_dir, step, run_id)


def write_checkpoint(run_dir: Path, step: int, run_id: str | None) -> None:
    """Write the files of a checkpoint that are looked at before a run is resumed."""
    directory = run_dir / CHECKPOINTS / directory_name(step)
    directory.mkdir(parents=True)
    document: dict[str, Any] = {"run": run_id, "step": step, "state": {"metrics": {}}}
    (directory / STATE).write_text(json.dumps(document))
    (directory / OPTIMIZER).write_bytes(b"")


def check(run_dir: Path) -> None:
    """Check a run as a resume does."""
    with RunStore.open(run_dir, read_only=True) as store:
        check_resumable(store)


def remove_all_checkpoints(run_dir: Path) -> None:
    shutil.rmtree(run_dir / CHECKPOINTS)


def remove_newest_checkpoint(run_dir: Path) -> None:
    shutil.rmtree(run_dir / CHECKPOINTS / directory_name(STEPS))


def remove_optimizer(run_dir: Path) -> None:
    (run_dir / CHECKPOINTS / directory_name(STEPS) / OPTIMIZER).unlink()


def damage_state(run_dir: Path) -> None:
    (run_dir / CHECKPOINTS / directory_name(STEPS) / STATE).write_text('{"state": {')


def add_a_much_newer_checkpoint(run_dir: Path) -> None:
    write_checkpoint(run_dir, STEPS + 2, None)


def remove_arrays(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "arrays")


def cut_arrays(run_dir: Path) -> None:
    with (run_dir / "arrays" / "turns.bin").open("rb+") as file:
        file.truncate(40)


def take_the_store_of_another_run(run_dir: Path) -> None:
    make_run(run_dir.parent / "other")
    shutil.copyfile(run_dir.parent / "other" / "store.sqlite", run_dir / "store.sqlite")


def take_the_checkpoints_of_another_run(run_dir: Path) -> None:
    make_run(run_dir.parent / "other")
    shutil.rmtree(run_dir / CHECKPOINTS)
    shutil.copytree(run_dir.parent / "other" / CHECKPOINTS, run_dir / CHECKPOINTS)


def take_the_arrays_of_another_run(run_dir: Path) -> None:
    turns = run_dir / "arrays" / "turns.bin"
    turns.write_bytes(bytes(len(turns.read_bytes())))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            remove_all_checkpoints,
            "there is no checkpoint: copy step-000003 back .*drops the steps after 0",
        ),
        (
            remove_newest_checkpoint,
            "the newest is .*step-000002: copy step-000003 back .*drops the steps after 2",
        ),
        (remove_optimizer, "no optimizer.safetensors.: restore it from a copy"),
        (damage_state, "is damaged .*restore it from a copy"),
        (add_a_much_newer_checkpoint, "store ends with step 3: the store is an older copy"),
        (remove_arrays, "lacks the arrays of a stored turn"),
        (cut_arrays, "lacks the arrays of a stored turn"),
        (take_the_arrays_of_another_run, "lacks the arrays of a stored turn"),
        (take_the_store_of_another_run, "was written by another run"),
        (take_the_checkpoints_of_another_run, "was written by another run"),
    ],
)
def test_a_run_that_lost_a_part_is_not_resumed(
    damage: Callable[[Path], None], message: str, run_dir: Path
) -> None:
    check(run_dir)
    damage(run_dir)
    with pytest.raises(AgentrlError, match=message) as refused:
        check(run_dir)
    assert refused.value.exit_code == ExitCode.DATA_REFUSED


def test_a_checkpoint_without_its_row_is_the_step_before_a_kill(run_dir: Path) -> None:
    with RunStore.open(run_dir) as store:
        write_checkpoint(run_dir, STEPS + 1, store.run_id)
    check(run_dir)


def test_a_run_that_was_killed_before_its_first_checkpoint_is_resumed(tmp_path: Path) -> None:
    RunStore.create(tmp_path / "run", CONFIG).close()
    check(tmp_path / "run")


def test_arrays_of_a_step_that_will_be_trained_are_read(run_dir: Path) -> None:
    session = "train-000004-00-00-a0"
    with RunStore.open(run_dir) as store:
        store.begin_step(4, ["task"])
        for name in (session, "train-000004-00-01-a0"):
            store.add_session(name, {})
            store.add_turn(a_turn(name))
        offset = (run_dir / "arrays" / "turns.bin").stat().st_size - 56
        store.put_rollout(a_rollout(step=4, session_id=session, counts=True))
    check(run_dir)
    with (run_dir / "arrays" / "turns.bin").open("rb+") as file:
        file.seek(offset)
        file.write(b"\xff")
    with pytest.raises(AgentrlError, match="lacks the arrays"):
        check(run_dir)


SAMPLER = """
import random

def again(draw):
    chance = random.Random(f"{draw.seed} {draw.step} {draw.spare}")
    tasks = sorted(draw.tasks, key=lambda each: (-each.last_step, -each.graded, chance.random()))
    return [each.task.id for each in tasks[:draw.count]]
"""


DYNAMIC = ("rollout.replace_flat=true", "rollout.spare_groups=2", "rollout.oversample_groups=1")


@pytest.mark.integration
@pytest.mark.parametrize(
    "sampling",
    [
        ("run.sampler=mine.py:again",),
        # test_group_runner.py: refilling does not depend on which groups are ready first
        pytest.param(("run.sampler=curriculum", *DYNAMIC), marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_trains_the_weights_of_an_undisturbed_one(
    sampling: tuple[str, ...], miniature: Miniature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks follow from what step 1 found, for the step that the kill interrupts, too."""
    (tmp_path / "mine.py").write_text(SAMPLER)
    monkeypatch.chdir(tmp_path)
    # a policy that solves nothing needs another signal
    shaped = ("reward.turn_penalty=0.1", "reward.length_penalty=0.1", *sampling)
    undisturbed = Miniature(
        tmp_path / "undisturbed", miniature.cache, miniature.policy, processes=miniature.processes
    )
    undisturbed.finish(undisturbed.begin(*shaped))
    driver = miniature.begin(*shaped)
    miniature.wait_until(
        lambda store: sum(each.step == 2 for each in store.rollouts(split="train")) >= 3, driver
    )
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    with miniature.store() as store:
        before = {record.session_id for record in store.rollouts(counts=True)}
    miniature.finish(miniature.resume())
    with undisturbed.store() as first, miniature.store() as second:
        wanted, found = account(first), account(second)
        assert before <= {record.session_id for record in second.rollouts(counts=True)}
        if not sampling[1:]:
            assert_nothing_twice(second)
    assert wanted["checkpoints"]["step-000001"] != wanted["checkpoints"]["step-000002"]
    assert differences(wanted, found) == []
    with miniature.store() as store:
        trained = store.rollouts(split="train")
    first_tasks, second_tasks = ({r.task_id for r in trained if r.step == n} for n in (1, 2))
    if sampling[1:]:
        assert {each.group for each in trained if each.step == 2} >= {0, 1, 2}, "one beforehand"
    else:
        assert first_tasks == second_tasks, "the plug-in was asked, and told of step 1"


@pytest.mark.parametrize(
    ("damage", "left"), [(remove_newest_checkpoint, [1, 2]), (remove_all_checkpoints, [])]
)
def test_a_rewind_drops_the_steps_whose_checkpoints_are_lost(
    damage: Callable[[Path], None], left: list[int], run_dir: Path
) -> None:
    damage(run_dir)
    with RunStore.open(run_dir) as store:
        check_resumable(store, rewind=True)
        rewind_store(store)
        assert [row.step for row in store.steps()] == left
        assert [event.data["to_step"] for event in store.events("rewound")] == [
            max(left, default=0)
        ]
        check_resumable(store)


@pytest.mark.parametrize("kind", ["rollout", "off"])
def test_a_rewind_makes_rollouts_anew_whose_routing_was_deleted(kind: str, tmp_path: Path) -> None:
    """The checkpoint is older than ``routing_replay.keep_steps`` covers."""
    routing = TurnRouting(0, np.arange(12, dtype=np.uint8).reshape(3, 2, 2), 16, 7, 0)
    config = CONFIG | {"routing_replay": {"kind": kind, "keep_steps": 1}}
    with RunStore.create(tmp_path / "run", config) as store:
        for step in (1, 2, 3):
            for group in (0, 1, 2):
                record = a_rollout(f"train-{step:06d}-{group:02d}-00")
                store.add_session(record.session_id, {})
                store.add_turn(a_turn(record.session_id), routing if group == 1 else None)
                store.put_rollout(replace(record, reward=None) if group == 2 else record)
            store.begin_step(step, ["task"])
            store.finish_step(step, {})
        write_checkpoint(store.run_dir, 1, store.run_id)
        rewind_store(store)
        kept = [record.rollout_id[6:15] for record in store.rollouts(counts=True)]
        again = ["000002-00"] if kind == "off" else []
        assert kept == [f"000001-0{n}" for n in range(3)] + again + ["000002-01", "000002-02"]


def test_a_rewind_of_a_whole_run_changes_nothing(run_dir: Path) -> None:
    with RunStore.open(run_dir) as store:
        rewind_store(store)
        assert [row.step for row in store.steps()] == [1, 2, 3]
        assert store.events("rewound") == []


@pytest.mark.integration
def test_a_resume_without_checkpoints_says_so_before_anything_starts(miniature: Miniature) -> None:
    miniature.finish(miniature.begin("run.steps=1"))
    shutil.rmtree(miniature.run_dir / CHECKPOINTS)
    before = (miniature.run_dir / "config.json").read_bytes()
    _, err = (resumed := miniature.resume("run.steps=2")).communicate()
    assert resumed.returncode == 5
    assert "copy step-000001 back" in err.decode()
    assert (miniature.run_dir / "config.json").read_bytes() == before
    document = miniature.finish(miniature.resume("run.steps=2", "--rewind"))
    assert document["steps"] == 2


@pytest.mark.integration
def test_a_checkpoint_loads_with_the_auto_classes(
    finished: tuple[Miniature, dict[str, Any]],
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    miniature, _ = finished
    directory = miniature.run_dir / CHECKPOINTS / directory_name(1)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = tokenizer("def add(a, b):", return_tensors="pt")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert model(ids).logits.shape[:2] == ids.shape
    template = (miniature.policy / "chat_template.jinja").is_file()
    assert bool(tokenizer.chat_template) == template
