"""Every published schema from a file of rows to graded rollouts, in one ``agentrl eval``.

The containers are real processes with a root of their own (the stand-in for ``docker``); each row's
image has the layout of its set's images. Of two rollouts of a task, one applies the row's reference
patch and the other one does nothing.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import sys
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentrl.testing.completions import Completion, Reply, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.records.record import RolloutRecord
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import write_tiny_tokenizer
from runners.system.processes.ports import free_port
from runners.tasks.package_logs import MULTI_SWE
from runners.tasks.schemas.detection import read_row
from tests.fakes.docker.installed import can_stand_in, docker_program
from tests.fakes.images import RIGHT, TEST, choose_image, make_image, put, write_pytest_layer
from tests.runners.tasks.dataset_rows import write
from tests.runners.tasks.published_rows import FIX, ROWS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not can_stand_in(), reason="this machine cannot stand in for docker"),
]
HAS_MULTI_SWE = importlib.util.find_spec(MULTI_SWE) is not None
CHECK = (
    "if python -c 'from calc import add; assert add(2, 1) == 3'; then word=PASS; else word=FAIL; "
    'fi; echo "--- $word: TestAdd (0.2s)"; echo "--- PASS: TestSub (9s)"'
)
"""A program that tests without pytest, and prints as Go does."""
LIVE_PARSER = """
def parser(log):
    lines = [line for line in log.splitlines() if line.startswith("--- ")]
    return {line.split()[2]: "pass" if "PASS" in line else "fail" for line in lines}
"""
KNOWN_BUG = "    def test_known_bug(self):\n        import more\n"
R2E = (
    put(
        "from calc import add\nclass TestAdd:\n    def test_add(self):\n"
        f"        assert add(2, 1) == 3\n{KNOWN_BUG}",
        "/r2e_tests/test_1.py",
    )
    + "\necho 'python -W ignore -m pytest -rA r2e_tests' > run_tests.sh\nchmod -R a+rX /r2e_tests"
)
NEW_FILE = "diff --git a/more.py b/more.py\nnew file mode 100644\n--- /dev/null\n+++ b/more.py\n"
PRO_PARSER = (
    "import json, sys\n"
    "lines = [l.split()[:2] for l in open(sys.argv[1]) if l.startswith(('PASSED', 'FAILED'))]\n"
    "tests = [{'name': n, 'status': s} for s, n in lines]\n"
    "json.dump({'tests': tests}, open(sys.argv[3], 'w'))\n"
)
V2_PARSERS = """
def parse_log_gotest(log):
    from lib.agent.swe_constants import TestStatus
    try:
        open({flag!r}, "w").write("ran on the host")
    except OSError:
        pass
    lines = [line for line in log.splitlines() if line.startswith("--- PASS: ")]
    return {{line[10:]: TestStatus.PASSED.value for line in lines}}
"""
ADD = "test_calc.py::test_add"


@dataclass(frozen=True)
class Case:
    """A row that can be run, its image, and the tests of the verdict."""

    row: dict[str, Any]
    image: str
    tests: tuple[str, ...] = (ADD,)
    """The fail-to-pass tests; none: an exit code decides."""
    patch: str = ""
    """What the honest rollout applies; "": the row's reference patch."""
    solved: bool = True
    """Whether that solves the task."""


def make_row(schema: str, **changes: Any) -> dict[str, Any]:
    """Return the schema's row with a problem that names it."""
    return {**ROWS[schema], "problem_statement": f"add() subtracts ({schema}).", **changes}


def make_cases() -> dict[str, Case]:
    """Return a case per schema, in which the layers of trainers are around some rows."""
    plain, go = make_image("/testbed"), ("TestAdd",)
    smith = [put(TEST, "test_calc.py"), put("def test_sub():\n    assert 1\n", "test_more.py")]
    later = (
        f"{put(TEST, 'test_calc.py')}\ngit add -A\ngit commit -qm 'the fix'\ngit tag fixed\n"
        "git checkout -q HEAD~1 2>&1"
    )
    pro = {
        "base_commit": "",
        "selected_test_files_to_run": "['test_calc.py']",
        "fail_to_pass": f"['{ADD}']",
        "pass_to_pass": "[]",
        "before_repo_set_cmd": "git reset --hard HEAD\ngit checkout fixed -- test_calc.py",
    }
    v2 = {
        "install_config": {
            "install": ["exit 1"],
            "test_cmd": [CHECK],
            "log_parser": "parse_log_gotest",
        }
    }
    tests = f"cd /testbed\n{put(TEST, 'test_calc.py')}\npytest -rA test_calc.py"
    gym = {"instance_id": "a__calc-2", "eval_script": tests}
    openswe = {"instance_id": "a__calc-5", "eval_script": f"{tests}; echo OPENSWE_EXIT_CODE=$?"}
    live = {"test_cmds": [f"{{ {CHECK}; }} > log.txt"], "test_patch": ""}
    live |= {
        "log_parser": LIVE_PARSER,
        "PASS_TO_PASS": ["TestSub", "TestGone"],
        "FAIL_TO_PASS": ["TestAdd"],
    }
    again = {"commit_hash": "6" * 40, "docker_image": "namanjain12/calc_final:again"}
    both = f"{FIX}{NEW_FILE}@@ -0,0 +1 @@\n+found = True\n"
    r2e = make_image("/testbed", more=f"mkdir /r2e_tests\n{R2E}")
    r2e_tests = ("TestAdd.test_add", "TestAdd.test_known_bug")
    inner = make_row("swebench", instance_id="a__calc-1")
    metadata = {"dataset_name": "SWE-bench_Verified", "instance_dict": json.dumps(inner)}
    found = {
        "swebench": Case({"responses_create_params": {"metadata": metadata}}, plain),
        "swebench_live": Case(make_row("swebench_live", **live), plain, go),
        "swebench_pro": Case(make_row("swebench_pro", **pro), make_image("/app", more=later)),
        "swe_smith": Case(
            {"extra_info": {"tools_kwargs": {"task": {"metadata": make_row("swe_smith")}}}},
            make_image("/testbed", calc=RIGHT, files="\n".join(smith)),
        ),
        "r2e_gym": Case({"info": make_row("r2e_gym")}, r2e, r2e_tests),
        "r2e_gym too much": Case(
            {**make_row("r2e_gym", **again), "problem_statement": "It fails (r2e_gym too much)."},
            r2e,
            r2e_tests,
            patch=both,
            solved=False,
        ),
        "swe_gym": Case({"instance": make_row("swe_gym", **gym)}, plain),
        "swe_rebench": Case(
            {"prompt": "p", "metadata": make_row("swe_rebench", instance_id="a__calc-3")}, plain
        ),
        "swe_rebench_v2": Case(make_row("swe_rebench_v2", **v2), make_image("/GoCalc"), go),
        "scale_swe": Case(
            make_row("scale_swe", pre_commands="git checkout -q -B scaleswe HEAD\\n"),
            make_image("/workspace/calc"),
            ("test_fail_to_pass.py::test_add",),
        ),
        "swe_lego": Case(make_row("swe_lego", instance_id="a__calc-4"), plain),
        "openswe": Case(make_row("openswe", **openswe), plain, ()),
    }
    if HAS_MULTI_SWE:
        script = put(f"cd /home/cli\n{CHECK}\n", "/home/test-run.sh")
        image = make_image("/home/cli", more=script)
        found["multi_swe"] = Case(make_row("multi_swe"), image, go)
    return found


class Policy(ScriptedEngine):
    """Applies its patch in the first rollout of a task, and does nothing in the second one."""

    def __init__(self, patches: dict[str, str]) -> None:
        super().__init__()
        self.patches = patches
        self.begun: Counter[str] = Counter()

    async def _generate(self, body: dict[str, Any]) -> Reply:
        self.script = deque([Completion(self.answer(self.tokenizer.decode(body["input_ids"])))])
        return await super()._generate(body)

    def answer(self, prompt: str) -> str:
        if "Solve the task" not in prompt:  # the pre-flight's
            return "ready<|im_end|>"
        (name,) = set(re.findall(r"\(([a-z0-9_ ]+)\)\.", prompt))
        self.begun[name] += "<tool_response>" not in prompt
        if "<tool_response>" in prompt or self.begun[name] > 1:
            return spoken([{"type": "tool_use", "name": "Submit", "input": {"message": "done"}}])
        command = f"git apply --whitespace=nowarn - <<'EOF'\n{self.patches[name]}EOF"
        return spoken([{"type": "tool_use", "name": "Bash", "input": {"command": command}}])


async def evaluate(cases: dict[str, Case], place: Path) -> tuple[int, str]:
    """Run ``agentrl eval swebench`` on a file of the rows; return its exit code and its output."""
    rows = {name: read_row(case.row) for name, case in cases.items()}
    write(place / "rows.jsonl", [case.row for case in cases.values()])
    scripts = place / "run_scripts" / rows["swebench_pro"].instance_id
    scripts.mkdir(parents=True)
    (scripts / "run_script.sh").write_text('python -m pytest -rA "$1"\n')
    (scripts / "parser.py").write_text(PRO_PARSER)
    (place / "log_parsers.py").write_text(V2_PARSERS.format(flag=str(place / "flag")))
    write_tiny_tokenizer(place / "tokenizer")
    write_pytest_layer(place / "layer")
    image = choose_image(
        {row.image or row.row_schema.image(row): cases[name].image for name, row in rows.items()}
    )
    patches = {
        name: case.patch or rows[name].row_schema.reference_patch(rows[name])
        for name, case in cases.items()
    }
    port = free_port("127.0.0.1")
    with docker_program(place / "bin", image=image, layer=place / "layer", internal="agents"):
        async with Policy(patches) as engine:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "cli.main", "eval", "swebench", "--json"),
                *("task.path=rows.jsonl", "run.dir=run", "eval.attempts_per_task=2"),
                *("sampling.eval_temperature=1", "rollout.concurrency=4", "task.flaky_reruns=0"),
                *("engine=sglang", f"engine.url={engine.url}", "model=local"),
                *("model.renderer=qwen3", "model.tokenizer=tokenizer", "observe.tensorboard=false"),
                *("sandbox=docker", "sandbox.network=agents", "gateway.host=127.0.0.1"),
                *(f"gateway.port={port}", f"gateway.public_url=http://127.0.0.1:{port}"),
                cwd=place,
                env={
                    **os.environ,
                    "XDG_CACHE_HOME": str(place / "cache"),
                    "PYTHONPATH": str(Path(__file__).parents[4]),
                },
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            printed, said = await process.communicate()
    return process.returncode or 0, (said + printed).decode()


def list_tests(record: RolloutRecord) -> set[str]:
    """Return the names of the tests in a rollout's verdict."""
    assert record.verdict is not None
    tests = record.verdict["tests"]
    assert isinstance(tests, dict)
    return {name for names in tests.values() for name in names}


async def test_rows_of_every_schema_become_graded_rollouts(tmp_path: Path) -> None:
    cases = make_cases()
    assert {name.partition(" ")[0] for name in cases} | {"multi_swe"} == {*ROWS} - {
        "eval_cmd",
        "f2p_script",
    }
    code, said = await evaluate(cases, tmp_path)
    assert code == 0, said
    names = {read_row(case.row).instance_id: name for name, case in cases.items()}
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        records = list(store.rollouts())
    ended: dict[str, dict[str, tuple[bool | None, float | None]]] = {}
    for record in records:
        name = names[record.task_id]
        ended.setdefault(name, {})["fix" if record.patch else "empty"] = (
            record.solved,
            record.reward,
        )
        assert {*cases[name].tests} <= list_tests(record), (name, record)
    assert ended == {
        name: {"fix": (case.solved, float(case.solved)), "empty": (False, 0.0)}
        for name, case in cases.items()
    }
    assert not (tmp_path / "flag").exists(), "a parser ran outside of its sandbox"
