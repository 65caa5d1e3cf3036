"""Campaigns from a program: the same runs, errors and signals as by the commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agentrl
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.records.tokenizer import tiny_tokenizer, write_tiny_tokenizer
from tests.fakes.records import example_run
from tests.fakes.tiny_model import write_tiny_model

SMALL = [
    "run.steps=2", "run.tasks_per_step=2", "run.rollouts_per_task=4", "run.eval_tasks=2",
    "task.train_tasks=8", "task.held_out_tasks=2", "observe.tensorboard=false",
]  # fmt: skip

SAMPLER = """
def in_turn(draw):
    ranked = sorted(draw.tasks, key=lambda each: (each.last_step, each.task.id))
    return [each.task.id for each in ranked[: draw.count]]
"""


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["scenari=mixed"], "scenari is not a key: did you mean scenario?"),
        (["run.steps=many", "seed=x"], "run.steps=many"),
        (["seed=0,1"], "several values are a sweep of 2 runs (seed=0, seed=1): call once for each"),
    ],
)
def test_a_wrong_configuration_is_one_error_with_the_words_of_the_command(
    overrides: list[str], words: str
) -> None:
    with pytest.raises(agentrl.ConfigError) as raised:
        agentrl.run(overrides)
    assert words in str(raised.value)


@pytest.mark.parametrize("words", ["run.steps=1", [1]])
def test_what_is_no_list_of_texts_is_refused(words: Any) -> None:
    with pytest.raises(agentrl.ConfigError, match=r"is no list of texts: write \['KEY=VALUE', …\]"):
        agentrl.run(words)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: agentrl.run(resume=3), "resume=3"),  # type: ignore[arg-type]
        (lambda: agentrl.run(config=3), "config=3"),  # type: ignore[arg-type]
        (lambda: agentrl.run(config_dir=3), "config_dir=3"),  # type: ignore[arg-type]
        (lambda: agentrl.evaluate("bugfix", resume=b"x"), "resume=b'x'"),  # type: ignore[arg-type]
        (lambda: agentrl.open_run(None), "run_dir=None"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_path_is_refused_by_the_name_of_its_argument(
    call: Callable[[], object], name: str
) -> None:
    with pytest.raises(agentrl.ConfigError, match="is no path: give it as a text or a pathlib"):
        call()
    with pytest.raises(agentrl.ConfigError) as caught:
        call()
    assert str(caught.value).startswith(f"{name} is no path")


def test_a_run_that_was_closed_says_so(tmp_path: Path) -> None:
    example_run(tmp_path / "run").close()
    with agentrl.open_run(tmp_path / "run") as run:
        waiting = run.rollouts()
        assert run.records()
    run.close()
    for read in (run.steps, run.records, run.summary, run.metrics, lambda: next(waiting)):
        with pytest.raises(agentrl.AgentrlError, match=r"run was closed: read it inside the `with"):
            read()


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    for call in (lambda: agentrl.open_run(tmp_path), lambda: agentrl.run(resume=tmp_path)):
        with pytest.raises(agentrl.AgentrlError, match="holds no run"):
            call()


@pytest.mark.integration
def test_names_are_imported_without_the_parts_that_run() -> None:
    loaded = "import agentrl, sys; print(*{'torch', 'runners.campaigns.run'} & set(sys.modules))"
    root = Path(__file__).parents[3]
    found = subprocess.run(
        [sys.executable, "-c", loaded],
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'runners/api'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == ""


def interrupt_in_first_step(run_dir: Path) -> None:
    """Send this process SIGINT as soon as the run has begun a step."""
    while True:
        time.sleep(0.02)
        try:
            with RunStore.open(run_dir, read_only=True) as store:
                if store.steps():
                    break
        except StoreError:
            continue  # it is being made
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.integration
async def test_a_campaign_is_interrupted_in_a_loop_resumed_in_a_thread_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    policy = write_tiny_tokenizer(tmp_path / "policy")
    write_tiny_model(policy, vocab_size=tiny_tokenizer().get_vocab_size())
    run_dir = tmp_path / "run"
    (tmp_path / "mine.py").write_text(SAMPLER)
    model = [
        f"run.sampler={tmp_path / 'mine.py'}:in_turn",
        f"model.path={policy}",
        f"model.tokenizer={policy}",
        f"run.dir={run_dir}",
    ]
    threading.Thread(target=interrupt_in_first_step, args=[run_dir]).start()
    finished = agentrl.run([*SMALL, *model])  # this test's loop runs
    assert finished.exit_code is agentrl.ExitCode.INTERRUPTED, finished
    assert finished.summary["steps"] < 2
    with ThreadPoolExecutor(1) as pool:
        finished = pool.submit(agentrl.run, resume=run_dir).result()
    assert (finished.exit_code, finished.message) == (agentrl.ExitCode.DONE, "")
    with finished.open() as reader:
        assert reader.summary() == {**finished.summary, "wall_s": reader.summary()["wall_s"]}
        assert [row.step for row in reader.steps()] == [1, 2]
        assert [row["step"] for row in reader.metrics()] == [1, 2]
        had, has = (set(row.tasks) for row in reader.steps())
        assert not had & has, "the sampler, asked again, knows what the first step had"
        assert [row.step for row in reader.evaluations()] == [0, 2]
        assert [len(group) for group in reader.groups(1)] == [4, 4]
        assert len(reader.records(split="eval")) == 4
        assert len(reader.records()) == 16
        for found in reader.rollouts(step=2):
            trained = sum(int(chain.loss_mask.sum()) for chain in found.chains)
            assert trained == found.record.sampled_tokens
            first = found.chains[0]
            assert first.tokens.dtype == np.int32
            assert reader.decode(first.tokens.tolist()).startswith("<|im_start|>system")
            assert reader.rollout(found.record.rollout_id).record == found.record
        with pytest.raises(KeyError, match="has no rollout train-9"):
            reader.rollout("train-9")
