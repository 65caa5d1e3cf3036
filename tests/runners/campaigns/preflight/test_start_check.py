"""Everything that would refuse a run is found before anything of it is made."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose
from conf.errors import AgentrlError, ConfigError, ExitCode
from conf.schema import Config
from runners.campaigns.preflight.start_check import (
    StartRefused,
    find_device_errors,
    find_start_errors,
    refuse,
)
from runners.records.tokenizer import train_tokenizer, write_tiny_tokenizer

LOCAL = ["model=local", "model.path=weights", "model.tokenizer=tok", "model.renderer=qwen3"]


@pytest.fixture(autouse=True)
def _in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_rows(*rows: dict[str, Any] | str) -> list[str]:
    """Write a task file and return the overrides that read it."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    Path("t.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return ["task=jsonl", "task.path=t.jsonl"]


def a_row(number: int) -> dict[str, Any]:
    """Return a row whose repository is a directory with one commit."""
    return {
        "instance_id": f"t{number}",
        "problem_statement": "Fix it.",
        "repo_path": "repo",
        "base_commit": "0" * 40,
        "eval_cmd": "python -m pytest tests",
    }


def messages(*overrides: str, **options: Any) -> list[str]:
    return [str(error) for error in find_start_errors([compose(list(overrides))], **options)]


@pytest.fixture
def repo() -> None:
    Path("repo/.git").mkdir(parents=True)


def test_the_laptop_campaign_has_no_error() -> None:
    assert messages() == []
    assert list(Path.cwd().iterdir()) == []


def test_a_wrong_path_is_said_and_nothing_is_made() -> None:
    (error,) = find_start_errors([compose([*LOCAL, "task=jsonl", "task.path=none.jsonl"])])
    assert str(error).startswith("task.path=none.jsonl: there is no such file")
    assert error.exit_code == ExitCode.DATA_REFUSED
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.usefixtures("repo")
def test_every_malformed_row_is_named_with_its_line() -> None:
    tasks = write_rows(a_row(1), "{", {"instance_id": "b"}, a_row(1))
    (text,) = messages(*LOCAL, *tasks)
    assert [line.partition(": ")[0] for line in text.splitlines()[1:]] == [
        "t.jsonl:2",
        "t.jsonl:3",
        "t.jsonl:4",
    ]


@pytest.mark.usefixtures("repo")
def test_too_few_rows_are_counted_against_what_a_step_needs() -> None:
    tasks = write_rows(*map(a_row, range(5)))
    (text,) = messages(*LOCAL, *tasks, "run.tasks_per_step=6")
    assert "5 tasks to train on, run.tasks_per_step=6" in text
    assert messages(*LOCAL, *tasks, "run.tasks_per_step=5") == []
    (text,) = messages(*LOCAL, *tasks, "run.tasks_per_step=4", "run.eval_tasks=2")
    assert "3 tasks to train on" in text
    (text,) = messages(*LOCAL, *tasks, "run.eval_tasks=6")
    assert text.startswith("task.held_out_tasks=6 is more than the 5 rows of t.jsonl: lower it")


@pytest.mark.usefixtures("repo")
def test_an_evaluation_that_selects_no_task_is_refused() -> None:
    write_rows(*map(a_row, range(3)))
    measured = [*LOCAL, "run.steps=0", "task=swebench", "task.path=t.jsonl"]
    assert messages(*measured, benchmark="swebench") == []
    for selection in (["eval.ids='x*'"], ["eval.offset=3"]):
        (text,) = messages(*measured, *selection, benchmark="swebench")
        assert "select no task" in text
    (text,) = messages(*measured, benchmark="bugfix")
    assert "is not what the benchmark bugfix measures" in text


@pytest.mark.parametrize("task", ["swebench", "jsonl"])
def test_the_tiny_policy_is_refused_on_another_task(task: str) -> None:
    config = compose([f"task={task}", *(["task.path=t.jsonl"] if task == "jsonl" else [])])
    found = [str(error) for error in find_start_errors([config])]
    assert any(text.startswith("model=tiny knows the words of task=bugfix only") for text in found)
    measured = find_start_errors([config], benchmark="swebench")
    assert any("or agentrl tasks check, which needs no model" in str(error) for error in measured)
    calibration = find_start_errors([config], uses_policy=False)
    assert not any("model=tiny" in str(error) for error in calibration)


def test_the_tiny_policy_is_not_sent_to_a_server_of_another_model() -> None:
    served = ["engine=sglang", "engine.url=http://127.0.0.1:9"]
    found = messages("model=tiny", *served)
    assert found[0].startswith("model=tiny comes with agentrl, and engine.url=")
    assert "Start the server that engine.url names" in found[1]


def test_an_agent_whose_first_prompt_is_longer_than_the_window_is_refused() -> None:
    (text,) = messages("harness=claude_code")
    assert "no rollout could take a turn; choose a model with a longer window" in text


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "names neither"),
        ("{}", "names neither"),
    ],
)
def test_a_damaged_config_json_is_refused(content: str | None, fault: str) -> None:
    Path("weights").mkdir()
    if content is not None:
        Path("weights/config.json").write_text(content)
    (text,) = messages(*LOCAL)
    assert text.startswith("model.path=weights: config.json")
    assert fault in text


def test_routing_replay_of_a_dense_policy_is_refused() -> None:
    Path("weights").mkdir()
    Path("weights/config.json").write_text('{"model_type": "qwen3"}')
    (text,) = messages(*LOCAL, "routing_replay=rollout")
    assert text.startswith("routing_replay=rollout needs a policy that routes")


def test_an_unknown_renderer_is_refused_with_and_without_a_tokenizer() -> None:
    unknown = [*LOCAL[:3], "model.renderer=qwen4"]
    (without,) = messages(*unknown)
    assert without.startswith("model.renderer='qwen4' is unknown. Did you mean 'qwen3'?")
    write_tiny_tokenizer(Path("tok"))
    assert messages(*unknown) == [without]


def test_everything_is_said_at_once_and_once_for_a_sweep() -> None:
    broken = [*LOCAL[:3], "model.renderer=qwen4", "task=jsonl", "task.path=none.jsonl"]
    configs = [compose([*broken, f"seed={seed}"]) for seed in (0, 1)]
    assert len(find_start_errors(configs)) == 2


def test_several_errors_have_their_common_exit_code_or_that_of_the_preflight() -> None:
    refuse([])
    alone = ConfigError("a")
    with pytest.raises(ConfigError):
        refuse([alone])
    with pytest.raises(StartRefused, match="a\nb") as caught:
        refuse([alone, ConfigError("b")])
    assert caught.value.exit_code == ExitCode.USAGE
    with pytest.raises(StartRefused) as caught:
        refuse([alone, AgentrlError("b")])
    assert caught.value.exit_code == ExitCode.PREFLIGHT


def served_config(engine: ScriptedEngine, *overrides: str) -> Config:
    tokenizer = write_tiny_tokenizer(Path("tok"))
    return compose(
        [
            *("engine=sglang", f"engine.url={engine.url}", f"model.tokenizer='{tokenizer}'"),
            *("model.renderer=qwen3", "model.max_context_tokens=2048", *overrides),
        ]
    )


@pytest.mark.integration
async def test_an_engine_of_another_model_is_refused() -> None:
    async with ScriptedEngine() as engine:
        fit = await asyncio.to_thread(find_start_errors, [served_config(engine)])
        assert fit == []
        assert engine.seen.requests == [], "nothing is generated"
        longer = served_config(engine, "model.max_context_tokens=999999")
        (short,) = await asyncio.to_thread(find_start_errors, [longer])
        assert "engine: context length: the server takes" in str(short)
        engine.tokenizer = train_tokenizer((), 256)
        (foreign,) = await asyncio.to_thread(find_start_errors, [served_config(engine)])
    assert str(foreign).startswith("engine: tokenizer: id ")
    assert foreign.exit_code == ExitCode.PREFLIGHT


@pytest.mark.integration
async def test_something_that_is_no_engine_is_refused() -> None:
    async with ScriptedEngine() as engine:
        engine.url = f"{engine.url}/v1"
        (error,) = await asyncio.to_thread(find_start_errors, [served_config(engine)])
    assert "404" in str(error)


@pytest.mark.usefixtures("repo")
def test_an_evaluation_set_is_read_before_anything_is_made() -> None:
    tasks = write_rows(*map(a_row, range(5)))
    Path("e.jsonl").write_text(json.dumps(a_row(2)) + "\n")
    measured = ["eval_task=jsonl", "eval_task.path=e.jsonl", "run.eval_tasks=1"]
    (text,) = messages(*LOCAL, *tasks, *measured, "run.tasks_per_step=1")
    assert text.splitlines()[1] == "t0: the statement and commit of t2"
    assert "t2: the same id" in text
    (tiny,) = messages("eval_task=swebench", "run.eval_tasks=1")
    assert "model=tiny knows the words of task=bugfix only, and eval_task=swebench" in tiny


def test_the_package_of_adapters_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.campaigns.preflight.start_check.find_spec", lambda name: None)
    (fault,) = messages("trainer.lora.rank=4", "engine=embedded")
    assert "pip install 'agentrl-campaigns[lora]'" in fault
    assert messages("trainer.lora.rank=4", "run.steps=0") == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_here_is_found_before_a_run_but_not_before_its_plan() -> None:
    lines = ["trainer.device=cuda", "trainer.threads=1"]
    (error,) = find_device_errors([compose(lines), compose([*lines, "seed=1"])])
    assert str(error).startswith("trainer.device=cuda, but torch sees no GPU here: ")
    assert error.exit_code == 3
    assert messages(*lines) == [], "a plan is made on a machine without a GPU"
    assert find_device_errors([compose([*lines, "run.steps=0"])]) == []
    assert find_device_errors([compose(["trainer.devices=2"])]) == [], "they train on the CPU"
