"""Plan a local run, and check it before it starts."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.compose import compose
from conf.errors import ExitCode
from conf.schema import Config
from launch.local import plan_local_run
from launch.preflight import PreflightError, find_problems, nearest_existing, refuse_fatal


@pytest.fixture(scope="module")
def config() -> Config:
    return compose([])


def changed(config: Config, section: str, **values: object) -> Config:
    part = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: part})


@settings(max_examples=30)
@given(
    steps=st.integers(0, 50),
    tasks=st.integers(1, 9),
    members=st.integers(2, 9),
    every=st.integers(0, 60),
    evaluated=st.integers(0, 64),
)
def test_the_plan_counts_every_rollout(
    config: Config, tmp_path_factory: pytest.TempPathFactory,
    steps: int, tasks: int, members: int, every: int, evaluated: int,
) -> None:  # fmt: skip
    run = changed(
        config, "run", steps=steps, tasks_per_step=tasks, rollouts_per_task=members,
        eval_every=every, eval_tasks=evaluated,
    )  # fmt: skip
    found = plan_local_run(run, tmp_path_factory.getbasetemp())
    due = [
        step for step in range(steps + 1)
        if step in (0, steps) or (every and step % every == 0)
    ]  # fmt: skip
    assert found.rollouts == steps * tasks * members
    assert found.evaluations == (len(due) if evaluated else 0)
    assert found.evaluation_rollouts == found.evaluations * evaluated
    assert found.memory_mb == sum(p.count * p.memory_mb for p in found.processes)


def test_an_engine_that_runs_elsewhere_is_not_a_process_of_the_run(tmp_path: Path) -> None:
    here = plan_local_run(compose([]), tmp_path)
    served = compose(["engine=sglang", "engine.url=http://h", "model=tiny"])
    elsewhere = plan_local_run(served, tmp_path)
    assert [p.name for p in here.processes] == [
        "driver and trainer",
        "engine",
        "gateway",
        "sandbox",
    ]
    assert [p.name for p in elsewhere.processes] == ["driver and trainer", "gateway", "sandbox"]


def test_several_devices_train_in_processes_of_their_own(tmp_path: Path) -> None:
    several = plan_local_run(compose(["trainer.devices=2"]), tmp_path)
    trainer = next(process for process in several.processes if process.name == "trainer")
    assert (trainer.count, several.processes[0].name) == (2, "driver")
    assert trainer.threads == max(1, several.cores // 2)
    divided = plan_local_run(compose(["trainer.devices=2", "trainer.shard=optimizer"]), tmp_path)
    part = next(process for process in divided.processes if process.name == "trainer")
    assert part.memory_mb == trainer.memory_mb - 3, "half of 12 MB, and 3 MB of whole weights"
    divided = plan_local_run(compose(["trainer.devices=8", "trainer.shard=model"]), tmp_path)
    part = next(process for process in divided.processes if process.name == "trainer")
    assert part.memory_mb == trainer.memory_mb - 3 * 3, "an eighth is less than the whole weights"


def test_a_run_whose_rollouts_go_on_while_it_trains_has_a_trainer_beside_its_driver(
    tmp_path: Path,
) -> None:
    truncate = "trainer.correction.truncate=token"
    together = plan_local_run(compose([truncate]), tmp_path)
    apart = plan_local_run(compose([truncate, "run.overlap=step"]), tmp_path)
    (both, *others), (driver, trainer, *beside) = together.processes, apart.processes
    assert (driver.name, driver.count, trainer.name, trainer.count) == ("driver", 1, "trainer", 1)
    assert trainer.threads == max(1, apart.cores // 2)
    assert trainer.memory_mb == both.memory_mb, "torch and the policy are in the other process"
    assert beside == others
    assert apart.memory_mb == together.memory_mb + driver.memory_mb


@pytest.mark.parametrize(
    ("lines", "bytes_per_parameter"),
    [
        ([], 16),
        (["trainer.precision=bfloat16"], 18),  # a copy to compute with
        (["trainer.kl.weight=0.1"], 20),
        (["trainer.kl.weight=0.1", "trainer.precision=bfloat16"], 20),
        (["trainer.lora.rank=4"], 4),
        (["trainer.lora.rank=4", "trainer.precision=bfloat16"], 2),
        (["trainer.devices=4", "trainer.shard=optimizer"], 8),
        (["trainer.devices=4", "trainer.shard=optimizer", "trainer.precision=bfloat16"], 6),
    ],
)
def test_the_trainer_s_memory_is_that_of_the_table_in_docs_one_gpu(
    lines: list[str], bytes_per_parameter: int, tmp_path: Path
) -> None:
    """The policy's own part, in bytes per parameter: half a GiB of them."""
    header = json.dumps({"weight": {"dtype": "BF16", "shape": [1 << 14, 1 << 15]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)

    def plan(path: Path) -> int:
        processes = plan_local_run(compose([*lines, f"model.path={path}"]), tmp_path).processes
        return next(each.memory_mb for each in processes if "trainer" in each.name)

    empty = tmp_path / "empty"
    empty.mkdir()
    assert plan(tmp_path) - plan(empty) == bytes_per_parameter * 512


def test_threads_are_the_cores_unless_given(config: Config, tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    given_three = changed(changed(config, "engine", threads=3), "trainer", threads=1)
    threads = {p.name: p.threads for p in plan_local_run(config, tmp_path).processes}
    fewer = {p.name: p.threads for p in plan_local_run(given_three, tmp_path).processes}
    assert (threads["engine"], threads["driver and trainer"]) == (cores, cores)
    assert (fewer["engine"], fewer["driver and trainer"]) == (3, 1)


def test_a_model_on_disk_is_planned_by_its_weights(config: Config, tmp_path: Path) -> None:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1 << 14, 1 << 14]}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    big = plan_local_run(changed(config, "model", path=tmp_path), tmp_path)
    small = plan_local_run(config, tmp_path)
    assert big.memory_mb - small.memory_mb > 4 * 1024
    assert big.disk_mb - small.disk_mb > 2 * 3 * 1000


def test_more_rollouts_than_fit_into_memory_are_a_warning(config: Config, tmp_path: Path) -> None:
    found = plan_local_run(changed(config, "rollout", concurrency=10**6), tmp_path)
    (problem,) = [p for p in found.problems if p.message.startswith("not enough memory")]
    assert not problem.fatal
    assert "rollout.concurrency" in problem.message


def test_a_plan_is_plain_json(config: Config, tmp_path: Path) -> None:
    document = asdict(plan_local_run(config, tmp_path))
    assert document["processes"][0]["name"] == "driver and trainer"


@pytest.mark.parametrize(
    ("document", "refused"),
    [
        ({"model_type": "qwen3_moe", "tie_word_embeddings": True}, True),
        ({"model_type": "glm4_moe", "tie_word_embeddings": True}, True),
        ({"model_type": "qwen3_moe", "tie_word_embeddings": False}, False),
        ({"model_type": "qwen3_moe"}, False),
        ({"model_type": "qwen3", "tie_word_embeddings": True}, False),
        ([], False),
        ({"model_type": []}, False),
    ],
)
def test_a_tied_mixture_of_which_sglang_would_lose_the_output_layer_is_refused(
    config: Config, tmp_path: Path, document: object, refused: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(document))
    tied = changed(config, "model", path=tmp_path)
    launched = compose(["engine=sglang_launch", "model=tiny"]).engine
    served = tied.model_copy(update={"engine": launched})
    said = [p.message for p in find_problems(served, tmp_path / "run") if "noise" in p.message]
    assert bool(said) is refused
    assert all("lm_head.weight" in message for message in said)
    assert not [p for p in find_problems(tied, tmp_path / "run") if "noise" in p.message]


def test_a_run_directory_below_a_file_cannot_be_created(config: Config, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (problem,) = [p for p in find_problems(config, tmp_path / "file" / "a") if p.fatal]
    assert "cannot be created" in problem.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_run_directory_that_cannot_be_written_is_fatal(config: Config, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    (problem,) = [p for p in find_problems(config, tmp_path / "a") if p.fatal]
    assert "cannot be written" in problem.message


def test_a_port_in_use_is_fatal(config: Config, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = find_problems(changed(config, "engine", port=port), tmp_path, port_grace_s=0.05)
    (problem,) = [p for p in found if p.fatal]
    assert f"engine.port={port} cannot be listened on" in problem.message
    assert "engine.port=0" in problem.message


def test_a_port_of_metrics_in_use_is_fatal(config: Config, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        used = changed(config, "gateway", metrics_port=port)
        found = find_problems(used, tmp_path, port_grace_s=0.05)
    (problem,) = [p for p in found if p.fatal]
    assert f"gateway.metrics_port={port} cannot be listened on" in problem.message
    assert "null" in problem.message


def test_a_port_that_a_killed_run_soon_frees_is_not_a_problem(
    config: Config, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as dying:
        port = dying.getsockname()[1]
        end = threading.Timer(0.2, dying.close)
        end.start()
        found = find_problems(changed(config, "gateway", port=port), tmp_path, port_grace_s=30)
        end.join()
    assert not [p for p in found if p.fatal]


def test_a_host_that_is_not_ours_is_fatal(config: Config, tmp_path: Path) -> None:
    found = find_problems(changed(config, "gateway", host="192.0.2.1"), tmp_path)
    assert any(p.fatal and "gateway.host=192.0.2.1" in p.message for p in found)


def test_directories_of_the_model_must_exist(config: Config, tmp_path: Path) -> None:
    lost = changed(config, "model", path=tmp_path / "a", tokenizer=tmp_path / "b")
    messages = [p.message for p in find_problems(lost, tmp_path) if p.fatal]
    assert [message.partition("=")[0] for message in messages] == ["model.path", "model.tokenizer"]


@pytest.mark.parametrize(
    ("isolation", "fatal", "words"),
    [
        ("auto", False, "bubblewrap is missing, so sandboxes run as plain processes"),
        ("bubblewrap", True, "sandbox.isolation=bubblewrap, but bubblewrap is missing"),
        ("unshare", True, "sandbox.isolation=unshare, but `unshare` is missing"),
        ("none", False, "run as plain processes of this user"),
    ],
)
def test_missing_isolation_is_reported(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    isolation: str, fatal: bool, words: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_problems(changed(config, "sandbox", isolation=isolation), tmp_path)
    (problem,) = [p for p in found if words in p.message]
    assert problem.fatal == fatal
    assert any("git is missing" in p.message for p in found)


def test_every_fatal_problem_is_refused_at_once(config: Config, tmp_path: Path) -> None:
    lost = changed(config, "model", path=tmp_path / "a", tokenizer=tmp_path / "b")
    with pytest.raises(PreflightError, match=r"model\.path=.*\n.*model\.tokenizer=") as caught:
        refuse_fatal(find_problems(lost, tmp_path))
    assert caught.value.exit_code == ExitCode.PREFLIGHT
    refuse_fatal([])


def test_nearest_existing_finds_the_nearest_ancestor(tmp_path: Path) -> None:
    assert nearest_existing(tmp_path / "a" / "b") == tmp_path
    assert nearest_existing(tmp_path) == tmp_path
