"""Harbor task directories: valid ones become tasks, each other one is named with its reason."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from conf.compose import compose
from runners.records.store.store_error import StoreError
from runners.services.driver import check_datasets, open_run
from runners.tasks.contract import HarborVerifier
from runners.tasks.harbor.directory import make_safe_id, read_directory, strip_canary
from runners.tasks.harbor.dockerfile import find_workdir
from runners.tasks.sets.dataset_files import DatasetError
from runners.tasks.sets.dataset_report import load_dataset, read_dataset
from tests.fakes.harbor_tasks import FILES, toml, write_task
from tests.runners.tasks.dataset_rows import config


def faults_of(path: Path) -> dict[str, str]:
    """Return the faults of a dataset by the task's name."""
    found = read_dataset(config(path), str(path)).faults
    return dict(fault.split(": ", 1) for fault in found)


def test_a_directory_becomes_a_task(tmp_path: Path) -> None:
    place = write_task(tmp_path / "count-lines", name="example/count")
    (task,) = load_dataset(config(place), str(place))
    assert (task.id, task.kind, task.workdir, task.image) == (
        "example__count",
        "harbor",
        "/app",
        None,
    )
    assert task.problem_statement.startswith("Write the number")
    assert isinstance(task.grading, HarborVerifier)
    assert task.repo == place
    assert len(task.base_commit) == 64


def test_a_directory_of_tasks_is_read_in_order_and_what_is_none_is_named(tmp_path: Path) -> None:
    write_task(tmp_path / "suite" / "b")
    write_task(tmp_path / "suite" / "a" / "nested")
    write_task(tmp_path / "suite" / "c", {"task.toml": None})
    write_task(tmp_path / "suite" / "d", {"task.toml": "a = "})
    write_task(tmp_path / "suite" / "e", name="example/b")
    write_task(tmp_path / "suite" / "f", {"tests/fixture/task.toml": "[task]"})
    (tmp_path / "suite" / "docs").mkdir()
    report = read_dataset(config(tmp_path / "suite"), str(tmp_path / "suite"))
    assert [task.id for task in report.tasks] == ["example__nested", "example__b", "example__f"]
    faults = faults_of(tmp_path / "suite")
    assert sorted(faults) == ["c", "d", "e"]
    assert "no task.toml" in faults["c"]
    assert "not TOML" in faults["d"]
    assert "example__b is in b already" in faults["e"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"instruction.md": None}, "no instruction.md"),
        ({"instruction.md": "<!-- canary 1 -->\n\n"}, "is empty"),
        ({"instruction.md": b"\xff"}, "not UTF-8"),
        ({"tests/test.sh": None}, "no tests/test.sh"),
        ({"tests/test.sh": "#!/bin/bash\r\nexit\r\n"}, "CRLF"),
        ({"solution/solve.sh": "#!/bin/bash\r\n"}, "solution/solve.sh has CRLF"),
        ({"environment/Dockerfile": None}, "neither environment/Dockerfile nor"),
        (
            {"environment/docker-compose.yaml": "services: {main: {}, db: {}}"},
            "the services db, main",
        ),
        ({"environment/docker-compose.yaml": "services: {db: {}}"}, "the services db"),
        ({"environment/docker-compose.yaml": "a: ["}, "describes no services"),
        ({"environment/docker-compose.yaml": "services: {main: {volumes: [a]}}"}, "main.volumes"),
        ({"environment/docker-compose.yaml": "services: {main: {image: a}}"}, "docker_image"),
        ({"task.toml": toml(top="steps = [{ name = 'a' }]")}, "several steps"),
        ({"task.toml": toml(environment='os = "windows"')}, "only linux"),
        ({"task.toml": toml(agent="timeout_sec = 0")}, "agent.timeout_sec"),
        ({"task.toml": toml(environment='env = { A = "${A}" }')}, "export AGENTRL_TASK_A"),
        (
            {
                "task.toml": toml(verifier='environment_mode = "separate"'),
                "tests/Dockerfile": "FROM a",
            },
            "verifier's image is not built",
        ),
    ],
)
def test_an_invalid_task_is_named_with_its_reason(
    tmp_path: Path, changes: dict[str, str | bytes | None], words: str
) -> None:
    write_task(tmp_path / "suite" / "one", changes)
    assert words in faults_of(tmp_path / "suite")["one"]


def test_a_link_inside_a_task_is_kept(tmp_path: Path) -> None:
    place = write_task(tmp_path / "one")
    (place / "environment" / "link").symlink_to("words.txt")
    assert read_directory(place).id == "example__one"


def test_the_digest_covers_contents_directories_and_the_right_to_execute(
    tmp_path: Path,
) -> None:
    place = write_task(tmp_path / "one")
    seen = {read_directory(place).digest}
    (place / "tests" / "data.bin").write_bytes(b"\0\xff")
    seen.add(read_directory(place).digest)
    (place / "tests" / "data.bin").chmod(0o755)
    seen.add(read_directory(place).digest)
    (place / "empty").mkdir()
    seen.add(read_directory(place).digest)
    assert len(seen) == 4


def test_canary_comments_are_left_out_of_the_instruction() -> None:
    text = "<!-- Canary GUID 1 -->\n# harbor-CANARY 2\n\n\n# Title\ntext canary\n"
    assert strip_canary(text) == "# Title\ntext canary\n"
    assert strip_canary("\n# canary\n") == "\n# canary\n"


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("org/task", "org__task"),
        ("plain-1.2_x", "plain-1.2_x"),
    ],
)
def test_an_id_is_the_name_with_safe_characters(name: str, safe: str) -> None:
    assert make_safe_id(name) == safe


def test_names_that_differ_keep_different_ids() -> None:
    names = ["a b", "a:b", "a-b", "../a-b", "x" * 150, "x" * 151, "ä", "..", "."]
    found = {make_safe_id(name) for name in names}
    assert len(found) == len(names)
    assert all(len(each) <= 100 and each[0] not in ".-" and "/" not in each for each in found)


def test_the_workdir_is_that_of_the_last_stage(tmp_path: Path) -> None:
    assert (
        find_workdir("FROM a\nWORKDIR /x\nFROM b\nWORKDIR /srv\nWORKDIR app # no\n")
        == "/srv/app # no"
    )
    assert find_workdir("FROM a\n# WORKDIR /no\nRUN a \\\n  WORKDIR /no\n") is None
    place = write_task(tmp_path / "one", {"task.toml": toml(environment='workdir = "/data"')})
    assert read_directory(place).workdir == "/data"
    place = write_task(tmp_path / "two", {"environment/Dockerfile": "FROM python:3.12"})
    assert read_directory(place).workdir == "/app"


def test_a_registry_names_local_tasks_and_refuses_those_elsewhere(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    write_task(tmp_path / "outside")
    entries = [
        {"name": "one", "path": "tasks/one"},
        {"name": "far", "git_url": "https://example.com/r.git", "path": "x"},
        {"name": "gone", "path": "tasks/gone"},
        {"name": "out", "path": "../outside"},
        {"name": "none"},
    ]
    registry = tmp_path / "tasks" / "registry.json"
    registry.write_text(json.dumps([{"name": "d", "version": "1", "tasks": entries}]))
    registry.write_text(registry.read_text().replace("tasks/", ""))
    for path in (registry, registry.parent):
        report = read_dataset(config(path), str(path))
        assert [task.id for task in report.tasks] == ["example__one"]
        faults = faults_of(path)
        assert "clone it" in faults["d/far"]
        assert "no task.toml" in faults["d/gone"]
        assert "leads out" in faults["d/out"]
        assert "no path" in faults["d/none"]
    registry.write_text("{}")
    with pytest.raises(DatasetError, match=r"no list of datasets"):
        read_dataset(config(registry), str(registry))


def test_a_manifest_names_tasks_beside_it(tmp_path: Path) -> None:
    write_task(tmp_path / "one")
    write_task(tmp_path / "two")
    manifest = tmp_path / "dataset.toml"
    digest = "sha256:" + "a" * 64
    manifest.write_text(
        f'[dataset]\nname = "org/d"\n[[tasks]]\nname = "example/two"\ndigest = "{digest}"\n'
        f'[[tasks]]\nname = "example/three"\ndigest = "{digest}"\n'
    )
    report = read_dataset(config(tmp_path), str(tmp_path))
    assert [task.id for task in report.tasks] == ["example__two"]
    assert "beside dataset.toml" in faults_of(manifest)["example/three"]
    manifest.write_text('[dataset]\nname = "d"\ntype = "sandbox"\n')
    assert len(read_dataset(config(manifest), str(manifest)).tasks) == 2


def pack(files: dict[str, bytes], *, prefix: str = "", link: str = "") -> bytes:
    """Return a tar file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo("link")
            member.type, member.linkname = tarfile.SYMTYPE, link
            archive.addfile(member)
    return stream.getvalue()


def test_rows_with_packed_directories_are_unpacked_safely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = {path: text.replace("{name}", "org/a").encode() for path, text in FILES.items()}
    other = {**files, "task.toml": b'[task]\nname = "org/b"\n'}
    binaries = [
        pack(files),
        pack(other, prefix="b/"),
        pack({**files, "../escape": b"x"}),
        pack(files, link="/etc/passwd"),
        b"no tar file",
        pack({"x": b""}),
    ]
    table = {"path": [f"tasks/{n}" for n in range(len(binaries))], "task_binary": binaries}
    file = tmp_path / "tasks.parquet"
    pyarrow.parquet.write_table(pa.table(table), file)
    report = read_dataset(config(file), str(file))
    assert [task.id for task in report.tasks] == ["org__a", "org__b"]
    assert all(task.repo.is_relative_to(tmp_path / "cache") for task in report.tasks)
    faults = faults_of(file)
    assert "leads out" in faults["tasks.parquet:3"]
    assert "something else than files" in faults["tasks.parquet:4"]
    assert "no tar file" in faults["tasks.parquet:5"]
    assert "no task.toml" in faults["tasks.parquet:6"]
    assert not (tmp_path / "escape").exists()


def test_a_run_is_not_continued_with_another_suite(tmp_path: Path) -> None:
    place = write_task(tmp_path / "suite" / "one")
    served = ["engine=sglang", "engine.url=http://127.0.0.1:1", "model.renderer=qwen3"]
    weights = ["model.path=w", "model.tokenizer=w"]
    path = f"task.path={tmp_path / 'suite'}"
    settings = compose([*served, *weights, "task=jsonl", path])
    with open_run(settings, tmp_path / "run", resume=False) as store:
        check_datasets(store, settings)
        (place / "tests" / "test.sh").write_text("#!/bin/sh\n")
        with pytest.raises(StoreError, match="has changed"):
            check_datasets(store, settings)
