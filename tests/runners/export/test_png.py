from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np

from runners.export.dump import Choice, dump
from runners.store.run_store import RunStore
from tests.runners.export.records import CONFIG, LOST, a_rollout, branched_turns

BLUE, VIOLET = (63, 122, 224), (148, 87, 207)


def several_steps(run_dir: Path) -> RunStore:
    store = RunStore.create(run_dir, CONFIG)
    names = ("eval-000000-00-00", "train-000001-00-00", "train-000001-01-00", "train-000002-00-00")
    for name in names:
        record = a_rollout(name)
        store.add_session(record.session_id, {})
        for turn in branched_turns(record.session_id):
            store.add_turn(turn)
        store.put_rollout(record)
    store.put_rollout(
        a_rollout("train-000003-00-00", outcome=LOST, reward=None, solved=None, turns=0)
    )
    return store


def has(path: Path, colour: tuple[int, int, int]) -> bool:
    pixels = np.asarray(matplotlib.image.imread(path))[..., :3]
    return bool((np.abs(pixels * 255 - colour) < 2).all(-1).sum() > 500)


def test_each_step_is_drawn_and_all_training_steps_together(tmp_path: Path) -> None:
    with several_steps(tmp_path / "run") as store:
        report = dump(store, tmp_path, formats=("png",))
    assert [file.path.name for file in report.files if file.format == "png"] == [
        "eval-000000.png",
        "steps.png",
        "train-000001.png",
        "train-000002.png",
        "train-000003.png",
    ]
    for name in ("eval-000000.png", "train-000001.png", "steps.png"):
        assert has(tmp_path / name, BLUE)
        assert has(tmp_path / name, VIOLET)
    assert not has(tmp_path / "train-000003.png", BLUE), "a lost rollout has no turns"


def test_one_step_alone_has_no_plot_over_steps(tmp_path: Path) -> None:
    with several_steps(tmp_path / "run") as store:
        dump(store, tmp_path, formats=("png",), choice=Choice(steps=range(2, 3)))
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["train-000002.png"]
