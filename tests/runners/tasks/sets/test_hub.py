"""Datasets of the hub, over its real client (which reads its settings once, so it runs in a process
of its own) and a hub on loopback.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from conf.errors import ExitCode
from runners.tasks.sets.dataset_files import DatasetError, read_rows
from runners.tasks.sets.hub import is_dataset_name
from tests.fakes.hub_server import SHA, Hub, serve_hub

LITE = "org/SWE-bench_Lite"
READ = """
import json, sys
from conf.errors import AgentrlError
from runners.tasks.sets.dataset_files import read_rows
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = [(str(place), row["instance_id"]) for place, row in read_rows(name)]
    except AgentrlError as error:
        found[name] = [int(error.exit_code), str(error)]
print(json.dumps(found))
"""


def parquet(*ids: str) -> bytes:
    file = io.BytesIO()
    rows = [{"instance_id": name, "FAIL_TO_PASS": '["a"]'} for name in ids]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


def line(name: str) -> bytes:
    return json.dumps({"instance_id": name}).encode()


DATASETS = {
    LITE: {
        "README.md": b"x",
        "data/test-00000-of-00002.parquet": parquet("a", "b"),
        "data/test-00001-of-00002.parquet": parquet("c"),
        "data/dev-00000-of-00001.parquet": parquet("d"),
    },
    "org/lines": {"test.jsonl": line("e"), "train.jsonl": line("f")},
    "org/converted": {"default/test/0000.parquet": parquet("g")},
    "org/two": {"x/test.jsonl": line("h"), "y/test.jsonl": line("i")},
    "org/gated": {"data/test.jsonl": line("j")},
    "org/prose": {"README.md": b"x"},
    "org/other": {"test.jsonl": line("k")},
}
GOOD = {
    f"{LITE}:dev": ["d"],
    LITE: ["a", "b", "c"],
    f"{LITE}@v1:dev": ["d"],
    f"{LITE}@{SHA}": ["a", "b", "c"],
    "org/lines": ["e"],
    "org/lines:train": ["f"],
    "org/converted": ["g"],
}
BAD = {
    f"{LITE}:tset": "has no split tset, it has dev, test",
    "org/prose": "has no split test, it has no Parquet or JSONL file",
    "org/two": "several splits test (x/test.jsonl, y/test.jsonl, …)",
    "org/none": "the hub has no dataset org/none that this HF_TOKEN may read",
    "org/gated": "org/gated is gated: accept its terms on its page, then set HF_TOKEN",
    f"{LITE}@v7": f"{LITE} has no revision v7",
}
Found = dict[str, list[Any]]


def read(home: Path, url: str, *names: str) -> Found:
    """Read datasets as a user whose cache is in ``home``."""
    done = subprocess.run(
        [sys.executable, "-c", READ, *names],
        env={**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Found = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def hub(home: Path) -> Iterator[Hub]:
    with serve_hub(Hub(DATASETS, gated=frozenset({"org/gated"}))) as served:
        yield served


@pytest.fixture(scope="module")
def found(hub: Hub, home: Path) -> Found:
    return read(home, hub.url, *GOOD, *BAD)


@pytest.mark.parametrize("name", GOOD)
def test_a_split_is_read_at_its_revision(found: Found, name: str) -> None:
    assert [row for _, row in found[name]] == GOOD[name]


def test_only_a_splits_files_are_fetched_and_only_once(found: Found, hub: Hub) -> None:
    fetched = [path for path in hub.requests if path.startswith(f"HEAD /datasets/{LITE}/resolve/")]
    assert sorted(path.rpartition("/")[2] for path in fetched) == [
        "dev-00000-of-00001.parquet",
        "test-00000-of-00002.parquet",
        "test-00001-of-00002.parquet",
    ]


def test_a_row_is_named_by_its_file_and_number(found: Found) -> None:
    assert [place for place, _ in found[LITE]] == [
        "test-00000-of-00002.parquet:1",
        "test-00000-of-00002.parquet:2",
        "test-00001-of-00002.parquet:1",
    ]


@pytest.mark.parametrize("name", BAD)
def test_a_missing_dataset_is_reported_with_its_fix(found: Found, name: str) -> None:
    code, message = found[name]
    assert BAD[name] in message
    assert code == ExitCode.DATA_REFUSED


def test_a_cached_split_needs_no_network(found: Found, home: Path) -> None:
    offline = read(home, "http://127.0.0.1:9", LITE, "org/other", f"{LITE}:tset")
    assert offline.pop(LITE) == found[LITE]
    for code, message in offline.values():
        assert code == ExitCode.SERVICE_GONE
        assert "cannot be reached" in message
        assert message.endswith("or give a file")


@pytest.mark.integration
def test_an_incomplete_split_in_the_cache_is_refused(
    found: Found, home: Path, tmp_path: Path
) -> None:
    assert found[LITE]
    cut_off = shutil.copytree(home, tmp_path / "home", symlinks=True)
    for shard in cut_off.rglob("test-00001-of-00002.parquet"):
        shard.unlink()
    for listing in cut_off.rglob("trees"):  # not every version of the client keeps one
        shutil.rmtree(listing)
    code, message = read(cut_off, "http://127.0.0.1:9", LITE)[LITE]
    assert code == ExitCode.SERVICE_GONE
    assert "the cache has 1 of the 2 files of the split" in message


def test_a_missing_file_is_not_taken_for_a_hub_name() -> None:
    assert is_dataset_name("princeton-nlp/SWE-bench_Verified@main:test")
    for path in ("data/rows.jsonl", "rows", "/data/rows", "a/b/c", "./a/b"):
        with pytest.raises(DatasetError, match="there is no such file"):
            list(read_rows(path))
