"""Errors become a message on stderr and a documented exit code, without a traceback."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from conf.compose import compose
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from tests.cli.conftest import Agentrl
from tests.runners.tasks.dataset_rows import write
from tests.runners.tasks.published_rows import ROWS

pytestmark = pytest.mark.integration


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return a directory that holds an interrupted run without a step."""
    path = tmp_path / "stored"
    with RunStore.create(path, compose(["seed=3"]).model_dump(mode="json")) as store:
        store.set_state(State.RUNNING)
        store.set_state(State.INTERRUPTED, exit_code=130)
    return path


def test_no_command_shows_the_help(agentrl: Agentrl) -> None:
    done = agentrl()
    assert done.code == 2
    assert "dump-trajectories" in done.stdout + done.stderr


def test_an_unknown_option_is_a_usage_error(agentrl: Agentrl) -> None:
    done = agentrl("run", "--resum", "x")
    assert done.code == 2
    assert "--resum" in done.stderr
    assert done.stdout == ""


def test_all_configuration_faults_go_to_stderr_with_exit_code_2(agentrl_process: Agentrl) -> None:
    done = agentrl_process("run", "run.stepz=1", "seed=x", "engine=sglan")
    assert done.code == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "3 errors:",
        "  engine=sglan is not a choice: did you mean engine=sglang? "
        "(choices: anthropic, embedded, openai, sglang, sglang_launch, vllm)",
        "  run.stepz is not a key: did you mean run.steps?",
        "  seed=x must be a whole number",
    ]


def test_a_list_of_faults_has_one_heading(agentrl: Agentrl, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("[]\n{}\n")
    done = agentrl("check", "eval", "swebench", f"task.path={tmp_path / 'rows.jsonl'}", "--gold")
    heading, *faults = done.stderr.splitlines()[-3:]
    assert heading == f"error: {tmp_path / 'rows.jsonl'} has 2 malformed rows:"
    assert [fault.partition("rows.jsonl")[2][:4] for fault in faults] == [":1: ", ":2: "]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status"], "Missing argument 'RUN' (see agentrl status --help)"),
        (["run", "--resum"], "No such option: --resum"),
        (["nothing"], "No such command 'nothing' (see agentrl --help)"),
        (["tasks"], "No such option: --json (see agentrl tasks --help)"),
        (["rollouts", "run", "--limit", "many"], "Invalid value for '--limit'"),
        (["compare", "run"], "name two runs or more"),
        (["report", "run", "--out"], "'--out' requires an argument"),
    ],
)
def test_with_json_a_fault_of_options_is_one_document(
    agentrl: Agentrl, words: list[str], message: str
) -> None:
    done = agentrl(*words[:1], "--json", *words[1:])
    document = json.loads(done.stdout)
    assert (done.code, document["exit_code"]) == (2, 2)
    assert message in document["error"]
    assert done.stderr == f"error: {document['error']}\n"


def test_with_json_a_fault_of_options_is_one_document_in_a_process(
    agentrl_process: Agentrl,
) -> None:
    done = agentrl_process("status", "--json")
    assert (done.code, json.loads(done.stdout)["exit_code"]) == (2, 2)
    assert agentrl_process("status", "-h", "--json").code == 0


def test_with_json_an_error_is_a_document_too(agentrl: Agentrl) -> None:
    done = agentrl("show", "seed=x", "--json")
    assert done.code == 2
    assert json.loads(done.stdout) == {"error": "seed=x must be a whole number", "exit_code": 2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rollouts", "--json"], "Missing argument 'RUN' (see agentrl rollouts --help)"),
        (["rollouts", "here", "--limit", "0", "--json"], "Invalid value for '--limit': "),
        (
            ["rollouts", "here", "--limit=x", "--json"],
            "Invalid value for '--limit': must be a whole number (see",
        ),
        (["compare", "here", "--json"], "Invalid value: name two runs or more"),
        (
            ["compare", "a", "b", "--html", "--json"],
            "Invalid value for '--html': --json is an option (if it is the value, write "
            "--html=--json) (see agentrl compare --help)",
        ),
        (
            ["tasks", "list", "tasks.jsonl", "--match", "--json"],
            "Invalid value for '--match': --json is an option",
        ),
        (["tasks", "lst", "--json"], "No such command 'lst'. Did you mean"),
        (["view", "here", "--json"], "No such option: --json"),
        (["--json", "status"], "No such option: --json"),
        (["statis", "--json"], "No such command 'statis'. Did you mean"),
    ],
)
def test_with_json_a_usage_error_is_a_document_too(
    agentrl_process: Agentrl, words: list[str], message: str
) -> None:
    done = agentrl_process(*words)
    document = json.loads(done.stdout)  # one, and nothing else
    assert (done.code, document["exit_code"]) == (2, 2)
    assert document["error"].startswith(message)
    assert done.stderr == f"error: {document['error']}\n"


def test_debug_shows_the_traceback(agentrl: Agentrl) -> None:
    assert "Traceback" in agentrl("--debug", "show", "seed=x").stderr
    assert "Traceback" not in agentrl("show", "seed=x").stderr


def test_markup_in_a_message_is_shown_as_it_is(agentrl: Agentrl) -> None:
    assert "trainer.betas=[0.9,2.0]" in agentrl("show", "trainer.betas=[0.9,2.0]").stderr


def test_every_run_of_a_sweep_is_checked_before_the_first_starts(agentrl: Agentrl) -> None:
    done = agentrl("run", "seed=0,x", "run.steps=1,-1")
    assert done.code == 2
    assert done.stderr.splitlines()[1:] == [
        "  run.steps=-1 must be at least 0",
        "  seed=x must be a whole number",
    ]


def test_a_failed_preflight_names_every_problem_with_exit_code_3(
    agentrl_process: Agentrl, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = agentrl_process("run", "run.dir=file/run", f"gateway.port={port}")
    assert done.code == 3
    assert "run.dir=file/run cannot be created" in done.stderr
    assert f"gateway.port={port} cannot be listened on" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_missing_bubblewrap_that_is_required_fails_the_preflight(
    agentrl_process: Agentrl, tmp_path: Path
) -> None:
    done = agentrl_process("run", "sandbox.isolation=bubblewrap", PATH=str(tmp_path))
    assert done.code == 3
    assert "bubblewrap is missing: install it" in done.stderr


def test_dry_run_shows_the_plan_and_starts_nothing(agentrl: Agentrl, tmp_path: Path) -> None:
    done = agentrl("run", "--dry-run", "--json", "run.steps=3", "run.dir=here", "engine.threads=1")
    assert done.code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["changes"] == {"run.steps": 3, "run.dir": "here", "engine.threads": 1}
    assert document["plan"]["rollouts"] == 3 * 8 * 8
    assert document["plan"]["evaluation_rollouts"] == 2 * 128
    assert list(tmp_path.iterdir()) == []


def test_dry_run_counts_the_sets_of_a_mixture(agentrl: Agentrl, tmp_path: Path) -> None:
    row = {**ROWS["eval_cmd"], "repo_path": "https://git.invalid/r", "base_commit": "1" * 40}
    for name, number in (("a", 3), ("b", 2)):
        ids = [f"{name}-{n}" for n in range(number)]
        rows = [{**row, "instance_id": each, "problem_statement": each} for each in ids]
        write(tmp_path / f"{name}.jsonl", rows)
    (tmp_path / "aside").write_text("a-0  # flaky\n")
    sets = "task.sets=[{path:a.jsonl,exclude:aside},{path:b.jsonl}]"
    served = ["engine=sglang", "engine.url=http://127.0.0.1:9", "model.renderer=qwen3"]
    words = ["task=mixture", sets, *served, "model.path=w", "model.tokenizer=w"]
    small = ["run.tasks_per_step=2", "run.eval_tasks=0"]
    done = agentrl("run", "--dry-run", "--json", *words, *small)
    document = json.loads(done.stdout)
    counts = {each["name"]: (each["number"], each["set_aside"]) for each in document["tasks"]}
    assert counts == {"a": (2, {"a-0": "flaky"}), "b": (2, {})}
    assert "tasks a: 2 of 1 repository, graded: 2 by eval_cmd; 1 set aside" in done.stderr
    assert "tasks b: 2 of 1 repository, graded: 2 by eval_cmd\n" in done.stderr


def test_dry_run_reports_problems_with_exit_code_3(agentrl: Agentrl, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = agentrl("run", "--dry-run", "run.dir=file/run")
    assert done.code == 3
    assert "error: run.dir=file/run cannot be created" in " ".join(done.stdout.split())


def test_dry_run_of_a_sweep_gives_each_run_its_directory(agentrl: Agentrl) -> None:
    done = agentrl("run", "--dry-run", "--json", "run.dir=all", "seed=0,1", "engine=embedded")
    runs = json.loads(done.stdout)["runs"]
    assert [run["label"] for run in runs] == ["seed=0", "seed=1"]
    assert [run["run_dir"] for run in runs] == ["all/000-seed=0", "all/001-seed=1"]


def test_a_resumed_run_refuses_another_seed(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl("run", "--resume", str(run_dir), "seed=4", "run.steps=50")
    assert done.code == 2
    assert "seed was 3 and cannot become 4 in a resumed run" in done.stderr


def test_resume_and_config_exclude_each_other(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl("run", "--resume", str(run_dir), "--config", "x.json")
    assert done.code == 2
    assert "--config" in done.stderr


def test_a_directory_without_a_run_is_refused_with_exit_code_5(
    agentrl: Agentrl, agentrl_process: Agentrl, tmp_path: Path
) -> None:
    assert agentrl_process("status", str(tmp_path)).code == 5
    for command in (["status"], ["dump-trajectories"], ["run", "--resume"]):
        done = agentrl(*command, str(tmp_path))
        assert done.code == 5, command
        assert "holds no run" in done.stderr


def test_a_configuration_file_is_accepted_back(agentrl: Agentrl, tmp_path: Path) -> None:
    shown = agentrl("show", "run.steps=7", "--json").stdout
    (tmp_path / "mine.json").write_text(shown)
    done = agentrl("run", "--dry-run", "--json", "--config", "mine.json", "seed=2")
    document = json.loads(done.stdout)
    assert document["changes"] == {"seed": 2, "run.steps": 7}


@pytest.mark.parametrize("content", [None, "{", '{"run": {"stepz": 1}}'])
def test_an_invalid_configuration_file_is_a_usage_error(
    agentrl: Agentrl, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "mine.json").write_text(content)
    assert agentrl("run", "--dry-run", "--config", "mine.json").code == 2


def test_status_of_a_stored_run(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl("status", str(run_dir), "--json")
    assert done.code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["state"] == "interrupted"
    assert "interrupted" in agentrl("status", str(run_dir)).stdout


def test_a_run_directory_that_holds_a_run_is_refused(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl("run", f"run.dir={run_dir}", "run.steps=0", "run.eval_tasks=0")
    assert done.code == 2
    assert f"continue a campaign or an evaluation with --resume {run_dir}" in done.stderr
