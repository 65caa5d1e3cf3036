"""A record's field is declared once: table, row, export, schema and Parquet follow from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

import runners
from runners.records.declaration import Column, field_docs, record_fields
from runners.records.record import RolloutRecord, Turn
from runners.records.store.record_table import RecordTable
from runners.records.store.run_store import RunStore
from tests.fakes.records import a_rollout, example_run

TREE = Path(runners.__file__).parents[1]
NEW_IN_TURN = '''    temperature: float = 1.0
    """Sampling temperature of this call."""
'''
NEW_IN_ROLLOUT = '''    reviewers: list[str] = field(default_factory=list)
    """Whoever looked at the patch, "{}" included."""
'''
SCRIPT = """
import json, sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from runners.observe.export.run_dump import dump
from runners.observe.export.jsonl import NAME, validate
from runners.observe.export.parquet import from_row
from runners.campaigns.schema import SCHEMAS, json_schema
from runners.records.store.run_store import RunStore
from tests.fakes.records import a_rollout, a_turn, example_run

old, new = Path(sys.argv[1]), Path(sys.argv[2])

def exported(store, out):
    dump(store, out, formats=("jsonl", "parquet"))
    lines = [json.loads(line) for line in (out / NAME).open()]
    rows = [from_row(row) for row in pq.read_table(out / "trajectories.parquet").to_pylist()]
    assert [row["reviewers"] for row in rows] == [line["reviewers"] for line in lines]
    return [(line["reviewers"], [turn["temperature"] for turn in line["turns"]]) for line in lines]

with RunStore.open(old, read_only=True) as store:
    read_only = exported(store, new / "a")
with RunStore.open(old) as store:
    turn = replace(a_turn("later"), temperature=0.25)
    store.add_session("later", {})
    store.add_turn(turn)
    wider = {"session_id": "later", "turns": 1, "trained_tokens": 2, "reviewers": ["ann"]}
    store.put_rollout(a_rollout("train-000002-00-00", **wider))
    assert store.turns("later")[0].temperature == 0.25
    written = exported(store, new / "b")
    assert validate(new / "b" / NAME) == []
trajectory, *_ = SCHEMAS
print(json.dumps([read_only, written, json.loads(json_schema(trajectory))]))
"""


def wider_tree(root: Path) -> Path:
    """Return a source tree that is ours but for two lines more in ``record.py``."""
    (root / "runners" / "records").mkdir(parents=True)
    for name in ("conf", "tests"):
        (root / name).symlink_to(TREE / name)
    for path in (TREE / "runners").iterdir():
        if path.name != "records":
            (root / "runners" / path.name).symlink_to(path)
    for path in (TREE / "runners" / "records").iterdir():
        (root / "runners" / "records" / path.name).symlink_to(path)
    record = root / "runners" / "records" / "record.py"
    text = record.read_text()
    record.unlink()
    here = "    @property\n    def prompt_tokens"
    assert here in text
    record.write_text(text.replace(here, f"{NEW_IN_TURN}\n{here}", 1) + NEW_IN_ROLLOUT)
    return root


def test_a_field_added_to_the_record_alone_is_stored_exported_and_in_the_schema(
    tmp_path: Path,
) -> None:
    example_run(tmp_path / "run").close()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "run", tmp_path],
        cwd=wider_tree(tmp_path / "tree"),
        env=os.environ | {"PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read_only, written, schema = json.loads(done.stdout)
    # an older run: read as it is, every turn and rollout with the default
    assert read_only == [[[], [1.0, 1.0]]] * 3 + [[[], []]]
    assert written == [*read_only, [["ann"], [0.25]]]
    assert schema["properties"]["reviewers"] == {
        "default": [],
        "description": 'Whoever looked at the patch, "{}" included.',
        "items": {"type": "string"},
        "title": "Reviewers",
        "type": "array",
    }
    part = schema["$defs"]["TurnPart"]
    assert part["properties"]["temperature"]["type"] == "number"
    assert "temperature" not in part["required"]  # exports of older runs do not have it


@dataclass(frozen=True, slots=True)
class Named:
    order: Annotated[int, Column("place", key=True)]
    name: str = "it's"


def test_a_column_without_a_default_cannot_be_added_to_an_older_table() -> None:
    table = RecordTable("thing", Named)
    assert table.add_missing({"place"}) == [
        "ALTER TABLE thing ADD COLUMN name TEXT NOT NULL DEFAULT 'it''s'"
    ]
    assert table.add_missing({"place", "name", "of another version"}) == []
    with pytest.raises(ValueError, match=r"thing\.place is new and has no default"):
        table.add_missing({"name"})


def test_a_type_that_no_column_holds_is_refused_when_the_table_is_declared() -> None:
    @dataclass
    class Odd:
        what: set[int]

    with pytest.raises(TypeError, match="no column holds what"):
        RecordTable("odd", Odd)


@pytest.mark.parametrize("record", [Turn, RolloutRecord])
def test_every_exported_field_says_what_it_means(record: type) -> None:
    docs = field_docs(record)
    exported = {field.name for field in record_fields(record) if field.exported}
    assert exported - set(docs) <= {"task_id", "outcome"}


def test_a_row_of_an_older_run_has_the_default_of_a_newer_field(tmp_path: Path) -> None:
    record: Any = a_rollout(extra={"node": "n1"})
    with RunStore.create(tmp_path / "run", {}) as store:
        store.put_rollout(record)
        store.query("ALTER TABLE rollout DROP COLUMN extra")
        (found,) = store.rollouts()
        assert (found.extra, found.rollout_id) == ({}, record.rollout_id)
    with RunStore.open(tmp_path / "run") as store:  # opened to be written: the column is there
        store.put_rollout(a_rollout("train-000001-00-01", extra={"node": "n2"}))
        assert [found.extra for found in store.rollouts()] == [{}, {"node": "n2"}]
