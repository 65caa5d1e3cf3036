"""Caches of large datasets: rows are validated once, and a cache that is not theirs is ignored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conf.cache import cache_root
from runners.tasks.dataset_report import CACHED_FROM, read_dataset
from runners.tasks.row_tasks import TaskBuilder
from runners.tasks.task_cache import TaskCache
from tests.runners.tasks.dataset_rows import CLASSIC, config, write
from tests.runners.tasks.published_rows import ROWS
from tests.runners.tasks.repositories import git, make_task


@pytest.fixture
def row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a row whose repository is beside its file; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "repo").mkdir()
    return {**CLASSIC, "repo_path": "repo"}


def ignore(text: str) -> None:
    """Show nothing."""


def store(file: Path) -> Path:
    """Cache the tasks of a file, and return the cache."""
    builder = TaskBuilder(config(file), file.parent)
    tasks = [builder.build(json.loads(line)) for line in file.read_text().splitlines()]
    TaskCache(config(file), str(file), [file]).write(builder, tasks)
    (cache,) = (cache_root() / "rows").iterdir()
    return cache


def is_cached(file: Path) -> bool:
    builder = TaskBuilder(config(file), file.parent)
    return TaskCache(config(file), str(file), [file]).read(builder, ignore) is not None


def test_a_second_start_reads_equal_tasks_from_the_cache(
    tmp_path: Path, row: dict[str, Any]
) -> None:
    rows = [{**row, "instance_id": f"t-{number}"} for number in range(CACHED_FROM)]
    file = write(tmp_path / "rows.jsonl", rows)
    shown: list[str] = []
    first = read_dataset(config(file), str(file), show=shown.append)
    second = read_dataset(config(file), str(file), show=shown.append)
    assert first == second
    assert shown == ["1,000 rows read", *(f"{n},000 rows read from the cache" for n in (1, 2))]


def test_every_schema_comes_back_from_the_cache_as_it_was(
    tmp_path: Path, row: dict[str, Any]
) -> None:
    names = ("swebench", "swebench_live", "r2e_gym", "openswe", "f2p_script", "eval_cmd")
    rows = [
        {**ROWS[name], "instance_id": name, "base_commit": "1" * 40, "image": "i"} for name in names
    ]
    file = write(tmp_path / "rows.jsonl", rows)
    builder = TaskBuilder(config(file), tmp_path)
    tasks = [builder.build(row) for row in rows]
    cache = TaskCache(config(file), str(file), [file])
    cache.write(builder, tasks)
    assert cache.read(TaskBuilder(config(file), tmp_path), ignore) == tasks


def test_few_rows_and_malformed_ones_are_not_cached(tmp_path: Path, row: dict[str, Any]) -> None:
    file = write(tmp_path / "few.jsonl", [row])
    assert not read_dataset(config(file), str(file)).faults
    rows = [{**row, "instance_id": f"t-{number}"} for number in range(CACHED_FROM)]
    file = write(tmp_path / "bad.jsonl", [*rows, "{"])
    assert read_dataset(config(file), str(file)).faults
    assert not (cache_root() / "rows").exists()


def flip(cache: Path) -> None:
    content = cache.read_bytes()
    cache.write_bytes(content.replace(b"It fails.", b"It falls.", 1))


def cut(cache: Path) -> None:
    cache.write_bytes(b"".join(cache.read_bytes().splitlines(keepends=True)[:-2]))


def age(cache: Path) -> None:
    key, rest = cache.read_text().split("\n", 1)
    digest, _code, *packages = json.loads(key)
    cache.write_text(json.dumps([digest, "0" * 64, *packages]) + "\n" + rest)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a byte is another": flip,
    "it is cut off": cut,
    "it is empty": lambda cache: cache.write_bytes(b""),
    "it is something else": lambda cache: cache.write_bytes(b"\x80\x04]\n[[[\n"),
    "another version wrote it": age,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_cache_that_is_damaged_or_old_is_ignored(
    tmp_path: Path, row: dict[str, Any], name: str
) -> None:
    file = write(tmp_path / "rows.jsonl", [row])
    cache = store(file)
    assert is_cached(file)
    DAMAGES[name](cache)
    assert not is_cached(file)


def test_a_file_that_is_written_to_while_it_is_read_is_not_cached(
    tmp_path: Path, row: dict[str, Any]
) -> None:
    file = write(tmp_path / "rows.jsonl", [row])
    builder, cache = TaskBuilder(config(file), tmp_path), TaskCache(config(file), str(file), [file])
    tasks = [builder.build(row)]
    write(file, [row, {**row, "instance_id": "t-2"}])
    cache.write(builder, tasks)
    assert not is_cached(file)


def test_a_dataset_that_changes_is_read_again(tmp_path: Path, row: dict[str, Any]) -> None:
    file = write(tmp_path / "rows.jsonl", [row])
    store(file)
    write(file, [{**row, "problem_statement": "It falls."}])
    assert not is_cached(file)
    store(file)  # replaces the one of the old content
    assert is_cached(file)


def test_what_lies_beside_the_rows_belongs_to_the_key(tmp_path: Path, row: dict[str, Any]) -> None:
    repo = make_task(tmp_path / "made").repo
    rows = [
        {"instance_id": "a", "problem_statement": "p", "eval_cmd": "true", "repo_path": str(repo)},
        {**ROWS["swebench_pro"], "run_script": "x", "parser_script_path": "parser.py"},
        row,
    ]
    (tmp_path / "parser.py").write_text("one")
    file = write(tmp_path / "rows.jsonl", rows)
    store(file)
    assert is_cached(file)
    (tmp_path / "parser.py").write_text("two")
    assert not is_cached(file), "a parser has changed"
    store(file)
    git(repo, "commit", "--allow-empty", "-qm", "later")
    assert not is_cached(file), "the HEAD of a repository has changed"
    store(file)
    (tmp_path / "repo").rename(tmp_path / "elsewhere")
    assert not is_cached(file), "a repository is gone"
