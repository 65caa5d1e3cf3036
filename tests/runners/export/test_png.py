from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np

from runners.export.dump import RolloutFilter, dump
from runners.store.run_store import RunStore
from tests.fakes.records import CONFIG, LOST, a_rollout, branched_turns

BLUE, VIOLET = (63, 122, 224), (148, 87, 207)
ORANGE, TEAL = (217, 130, 43), (42, 157, 143)


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


def mask(path: Path, colour: tuple[int, int, int]) -> np.ndarray:
    """Return which pixels have a colour, bool [height, width]."""
    pixels = np.asarray(matplotlib.image.imread(path))[..., :3]
    return np.asarray((np.abs(pixels * 255 - colour) < 2).all(-1))


def has(path: Path, colour: tuple[int, int, int]) -> bool:
    return bool(mask(path, colour).sum() > 500)


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
        dump(store, tmp_path, formats=("png",), selection=RolloutFilter(steps=range(2, 3)))
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["train-000002.png"]


def test_the_swimlane_has_a_bar_per_turn_in_the_colour_of_its_branch(tmp_path: Path) -> None:
    """Turn n begins at second 1000.5 + n and lasts 0.5 s: bars and gaps of one width."""
    with several_steps(tmp_path / "run") as store:
        dump(store, tmp_path, formats=("png",), selection=RolloutFilter(steps=range(2, 3)))
    path = tmp_path / "train-000002.png"
    height, width = mask(path, BLUE).shape
    lanes = slice(0, height // 4)  # the plots below it have these colours too, and so has
    plot = slice(0, int(0.88 * width))  # the legend to its right
    named = {"main": BLUE, "subagent": VIOLET, "sum": ORANGE, "side": TEAL}
    columns = {name: bars_of(mask(path, colour)[lanes, plot]) for name, colour in named.items()}
    assert {name: len(found) for name, found in columns.items()} == {
        "main": 4,  # turns 1, 4, 5 and 7
        "subagent": 2,  # turns 2 and 3
        "sum": 1,
        "side": 1,
    }
    bars = sorted(bar for found in columns.values() for bar in found)
    steps = np.diff([start for start, _ in bars])
    assert np.ptp(steps) <= 3, "turns begin a second after one another"
    assert all(abs(size - steps[0] / 2) <= 4 for _, size in bars), "each lasts half a second"


def bars_of(found: np.ndarray) -> list[tuple[int, int]]:
    """Return the first column and the width of each run of columns that have enough pixels."""
    filled = np.concatenate([[0], found.sum(0) > 3, [0]]).astype(int)
    starts, ends = np.flatnonzero(np.diff(filled) == 1), np.flatnonzero(np.diff(filled) == -1)
    return [(int(start), int(end - start)) for start, end in zip(starts, ends, strict=True)]
