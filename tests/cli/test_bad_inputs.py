"""What a user mistypes: one plain message, exit code 2, and nothing is made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Agentrl
from tests.fakes.internal_words import INTERNAL

RUN = "run"
"""A run with rollouts in steps 1 to 3."""


@pytest.fixture
def a_run(tmp_path: Path) -> None:
    from tests.fakes.records import a_rollout, example_run

    with example_run(tmp_path / RUN) as store:
        store.put_rollout(a_rollout("train-000003-001-00"))


BROKEN = {
    "rows.jsonl": '{"instance_id": "a", \n',
    "plugin.py": "import nothing_of_that_name\n\ndef reward(result):\n    return 1.0\n",
    "config.json": "{not json",
    "faults.yaml": "rules: [{where: nowhere}]\n",
}
BAD: list[tuple[str, int, str]] = [
    ("run run.steps=x", 2, "run.steps=x must be a whole number"),
    ("run sampling.temperature=hot", 2, "must be a number"),
    ("run observe.tensorboard=maybe", 2, "must be true or false"),
    ("run observe.dashboard=of", 2, "must be auto, on or off: did you mean off?"),
    ("run trainer.betas=0.9", 2, "such as [0.9,0.95]"),
    ("run run.dir=5", 2, "must be text"),
    ("run rollout.deadlines=3", 2, "is a section"),
    ("run run.stepz=3", 2, "did you mean run.steps?"),
    ("run engine=sglan", 2, "did you mean engine=sglang?"),
    ("run engine=sglang_launch engine.url=x", 2, "engine.url belongs to"),
    ("run run.steps", 2, "is not KEY=VALUE"),
    ("run --config config.json", 2, "is not JSON"),
    ("run --config missing.json", 2, "cannot be read"),
    ("run --resume missing", 5, "holds no run"),
    ("run task=jsonl task.path=missing.jsonl model=local engine=sglang", 2, "has no value"),
    ("run reward=plugin.py:reward", 2, "nothing_of_that_name"),
    ("run reward=plugin.py:nothing", 2, "plugin.py"),
    ("run faults=file faults.path=faults.yaml", 2, "where=nowhere must be"),
    ("run faults=file faults.path=missing.yaml", 2, "cannot be read"),
    ("eval nothing", 2, "is not a benchmark"),
    ("eval bugfix eval.ids=nothing*", 2, "select no task"),
    ("eval swebench task.path=rows.jsonl", 3, "rows.jsonl"),
    ("tasks list rows.jsonl", 5, "rows.jsonl"),
    ("referee run", 2, "ADAPTER"),
    ("referee run missing.py", 1, "there is no such Python file"),
    ("referee run rows.jsonl --wire chatt", 2, "did you mean chat?"),
    ("referee run rows.jsonl --only editz", 2, "did you mean edits?"),
    ("referee run rows.jsonl --scenarios rows.jsonl", 1, "rows.jsonl:1"),
    ("referee run plugin.py --tokenizer missing", 1, "--tokenizer missing"),
    ("referee run plugin.py --format xml", 1, "choose one of hermes"),
    ("referee explain rows.jsonl edits", 1, "is no file of `referee run --out`"),
    ("tasks list rows.jsonl --state redy", 2, "--state redy: did you mean ready?"),
    ("tasks list rows.jsonl --split test", 2, "choose one of held_out, train"),
    ("tasks list rows.jsonl --schema swebenh", 2, "did you mean swebench?"),
    ("tasks export-harbor out --match nothing*", 2, "--match nothing* selects no task"),
    (f"rollouts {RUN} --only solvd", 2, "did you mean solved?"),
    (f"rollouts {RUN} --outcome nothing", 2, "choose one of"),
    (f"rollouts {RUN} --kind nothing", 2, "choose one of"),
    (f"rollouts {RUN} --sort nothing", 2, "choose one of"),
    (f"rollouts {RUN} --step x", 2, "give a step (5) or a range"),
    (f"rollouts {RUN} --step 99", 2, "--step 99: the run has steps 1 to 3"),
    (f"rollouts {RUN} --group 7", 2, "--group 7: the run has groups 0 to 1"),
    (f"rollouts {RUN} --task nothing", 2, "--task nothing: the run has no such task"),
    (f"dump-trajectories {RUN} --only solvd", 2, "did you mean solved?"),
    (f"dump-trajectories {RUN} --format jsonn", 2, "did you mean jsonl?"),
    (f"dump-trajectories {RUN} --step 4-9", 2, "--step 4-9: the run has steps 1 to 3"),
    (f"dump-trajectories {RUN} --task nothing", 2, "the run has no such task"),
    (f"compare {RUN}", 2, "two runs or more"),
    (f"compare {RUN} {RUN}/../{RUN}", 2, "name each run once"),
    ("view missing", 5, "holds no run"),
    ("report missing", 5, "holds no run"),
]


@pytest.mark.parametrize(("line", "code", "part"), BAD, ids=[line for line, _, _ in BAD])
@pytest.mark.usefixtures("a_run")
def test_a_bad_input_is_refused_in_plain_words_and_nothing_is_made(
    line: str, code: int, part: str, agentrl: Agentrl, tmp_path: Path
) -> None:
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text, "utf-8")
    done = agentrl(*line.split())
    assert done.code == code, done.stderr
    said = re.sub(r"\s*│\s*", " ", done.stderr)
    assert part in said, said
    assert INTERNAL.search(said) is None, said
    assert len(said.splitlines()) < 25
    assert done.stdout == "" or line.startswith("tasks list"), done.stdout
    # Importing plugin.py compiles it beside itself, as Python does for every module.
    made = {path.name for path in tmp_path.iterdir()} - {"runs", "__pycache__"}
    assert made == {*BROKEN, RUN}
    assert not list(tmp_path.glob("runs/*"))


def test_of_a_long_list_twenty_lines_are_shown(agentrl: Agentrl) -> None:
    keys = [f"nothing{number}=1" for number in range(23)]
    lines = agentrl("show", *keys).stderr.splitlines()
    assert lines[0] == "23 errors:"
    assert len(lines) == 20
    assert lines[-1] == "  and 5 more"
