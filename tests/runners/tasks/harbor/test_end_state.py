"""Harbor tasks are graded in the end state of their sandbox, by their own verifier."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conf.sections.task import VerdictRewardConfig
from runners.rollouts.contract import verdict_to_dict
from runners.rollouts.reward import VerdictReward
from runners.sandboxes.local.backend import LocalBackend
from runners.tasks.contract import VerdictKind
from runners.tasks.grading import RolloutResult
from runners.tasks.grading.graders.end_state import script_argv
from runners.tasks.harbor.inspection import leads_to_tests
from runners.tasks.harbor.suites import read_task
from runners.tasks.patches.patch import decode_patch
from tests.fakes.harbor_suite import write_suite
from tests.fakes.harbor_tasks import SOLVE, TEST, toml, write_task
from tests.fakes.sandbox_backends import skip_without
from tests.runners.tasks.harbor.grading import grade_agent, grade_reference, make_grader

pytestmark = pytest.mark.integration

REWARD = "#!/bin/bash\n{} > /logs/verifier/reward.txt\n"


def test_the_oracle_solves_every_task_of_the_suite_and_nothing_solves_none(tmp_path: Path) -> None:
    skip_without("bubblewrap")
    write_suite(tmp_path / "suite")
    command = ["eval", "swebench", "--gold", "--json", "task.path=suite", "run.dir=calibration"]
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *command, "rollout.concurrency=4"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["fit"], found["gold_solved"], found["empty_solved"]) == (20, 20, 0), found


async def test_an_agents_work_is_graded_where_it_is(backend: LocalBackend, tmp_path: Path) -> None:
    place = write_task(tmp_path / "one")
    solved = await grade_agent(backend, place, SOLVE)
    assert (solved.kind, solved.rewards) == (VerdictKind.SOLVED, (("reward", 1.0),))
    wrong = await grade_agent(backend, place, "echo 4 > /app/answer.txt")
    assert (wrong.kind, wrong.rewards) == (VerdictKind.UNSOLVED, (("reward", 0.0),))
    assert not wrong.tampered


async def test_an_agent_sees_neither_tests_nor_solution(
    backend: LocalBackend, tmp_path: Path
) -> None:
    place = write_task(tmp_path / "one")
    search = "ls -d /tests /solution; grep -rl answer.txt / --include=*.sh 2>/dev/null"
    look = f"(({search}) > /app/seen.txt 2>/dev/null); {SOLVE}"
    test = REWARD.format("grep -c . /app/seen.txt")
    place = write_task(place, {"tests/test.sh": test})
    assert (await grade_agent(backend, place, look)).rewards == (("reward", 0.0),)


@pytest.mark.parametrize(
    ("printed", "reward", "kind"),
    [
        ("echo 0.5", 0.5, VerdictKind.UNSOLVED),
        ("echo 1.5", 1.5, VerdictKind.SOLVED),
        ("echo -1", -1.0, VerdictKind.UNSOLVED),
        ("echo 0.999", 0.999, VerdictKind.UNSOLVED),
    ],
)
async def test_a_real_reward_is_kept_and_solves_from_one(
    backend: LocalBackend, tmp_path: Path, printed: str, reward: float, kind: VerdictKind
) -> None:
    place = write_task(tmp_path / "one", {"tests/test.sh": REWARD.format(printed)})
    verdict = await grade_agent(backend, place, "")
    assert (verdict.kind, dict(verdict.rewards)) == (kind, {"reward": reward})
    record = verdict_to_dict(verdict)
    assert record is not None
    assert record["rewards"] == {"reward": reward}


async def test_partial_credit_pays_the_verifiers_reward(
    backend: LocalBackend, tmp_path: Path
) -> None:
    paid = VerdictRewardConfig.model_validate(
        {
            **{"kind": "tests", "solved": 1.0, "unsolved": 0.0, "partial_credit": 0.4},
            **{"turn_penalty": 0.0, "turn_budget": 1, "length_penalty": 0.0, "token_budget": 1},
            **{"overlong_penalty": 0.0, "overlong_tokens": 1, "malformed_penalty": 0.0},
        }
    )
    rewards = []
    for printed in ("echo 0.5", "echo -3", "echo 1"):
        place = write_task(tmp_path / "one", {"tests/test.sh": REWARD.format(printed)})
        verdict = await grade_agent(backend, place, "")
        ungraded = RolloutResult.of_patch(decode_patch("", {}))
        rewards.append(VerdictReward(paid)(replace(ungraded, verdict=verdict)).value)
    assert rewards == [0.2, 0.0, 1.0]


async def test_where_the_untouched_environment_has_no_verdict_either_there_is_none(
    backend: LocalBackend, tmp_path: Path
) -> None:
    for number, script in enumerate(("exit 1", "echo > /logs/verifier/reward.txt", "echo x > r")):
        place = write_task(tmp_path / str(number), {"tests/test.sh": f"#!/bin/bash\n{script}\n"})
        verdict = await grade_agent(backend, place, SOLVE)
        assert verdict.kind is VerdictKind.INFRA, verdict
        assert "nor has it a verdict untouched" in verdict.reason


async def test_a_verifier_that_an_agent_breaks_is_unsolved(
    backend: LocalBackend, tmp_path: Path
) -> None:
    test = "#!/bin/bash\nset -e\n[ ! -e /app/break ]\n" + TEST
    place = write_task(tmp_path / "one", {"tests/test.sh": test})
    verdict = await grade_agent(backend, place, f"touch /app/break; {SOLVE}")
    assert verdict.kind is VerdictKind.UNSOLVED, verdict
    assert "untouched, the environment gets a verdict" in verdict.reason


async def test_a_verifier_that_an_agent_keeps_from_ending_is_unsolved(
    backend: LocalBackend, tmp_path: Path
) -> None:
    place = write_task(tmp_path / "one")
    verdict = await grade_agent(
        backend, place, "rm -f /app/answer.txt; mkfifo /app/answer.txt", deadline_s=2
    )
    assert verdict.kind is VerdictKind.UNSOLVED, verdict
    assert verdict.timed_out


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("/app/answer.txt", "/tests/expected.txt"),
        ("/app/answer.txt", "../tests/expected.txt"),
        ("/app/up", "/"),
        ("/app/up", "/proc/self/root"),
        ("/logs/artifacts/answer.txt", "/tests/expected.txt"),
    ],
)
async def test_a_link_to_the_tests_is_tampering(
    backend: LocalBackend, tmp_path: Path, link: str, target: str
) -> None:
    test = REWARD.format("cmp -s /app/answer.txt /tests/expected.txt && echo 1 || echo 0")
    place = write_task(tmp_path / "one", {"tests/test.sh": test, "tests/expected.txt": "42\n"})
    verdict = await grade_agent(backend, place, f"ln -sf {target} {link}")
    assert verdict.kind is VerdictKind.UNSOLVED
    assert verdict.tampered == f"{link} leads to {target}"


def test_only_links_to_the_tests_count() -> None:
    assert leads_to_tests("/app/a/b", "../../tests")
    assert leads_to_tests("/app/a", "../..")
    assert not leads_to_tests("/app/a/b", "../tests")
    assert not leads_to_tests("/app/python", "/usr/bin/python3")
    assert not leads_to_tests("/app/a", "/tests2/x")


async def test_links_are_no_artifacts(backend: LocalBackend, tmp_path: Path) -> None:
    test = REWARD.format("cat /logs/artifacts/x /app/answer.txt 2>/dev/null || echo 0")
    changes = {
        "task.toml": toml(
            top='artifacts = ["/app/answer.txt"]', verifier='environment_mode = "separate"'
        ),
        "tests/test.sh": test,
        "tests/one": "1\n",
        "environment/one": "1\n",
        "environment/Dockerfile": "FROM python:3.12\nWORKDIR /app\nCOPY one /data/one\n",
    }
    place = write_task(tmp_path / "one", changes)
    script = "ln -s /data/one /app/answer.txt; ln -s /data/one /logs/artifacts/x"
    verdict = await grade_agent(backend, place, script)
    assert verdict.rewards == (("reward", 0.0),), verdict


async def test_a_separate_verifier_sees_the_artifacts_alone(
    backend: LocalBackend, tmp_path: Path
) -> None:
    changes = {
        "task.toml": toml(
            top='artifacts = ["/app/answer.txt"]', verifier='environment_mode = "separate"'
        ),
        "tests/test.sh": REWARD.format(
            "[ ! -e /app/other ] && [ -e /app/words.txt ] && cat /app/answer.txt"
        ),
    }
    place = write_task(tmp_path / "one", changes)
    verdict = await grade_agent(backend, place, "echo 1 > /app/answer.txt; touch /app/other")
    assert verdict.kind is VerdictKind.SOLVED, verdict


async def test_artifacts_that_are_too_large_are_the_agents_doing(
    backend: LocalBackend, tmp_path: Path
) -> None:
    changes = {"task.toml": toml(verifier='environment_mode = "separate"')}
    place = write_task(tmp_path / "one", changes)
    fill = "for n in $(seq 18); do head -c 4000000 /dev/urandom > /logs/artifacts/$n; done"
    verdict = await grade_agent(backend, place, fill)
    assert verdict.kind is VerdictKind.UNSOLVED, verdict
    assert "artifacts are larger" in verdict.reason


async def test_a_task_without_a_solution_has_no_reference_verdict(
    backend: LocalBackend, tmp_path: Path
) -> None:
    place = write_task(tmp_path / "one", {"solution/solve.sh": None})
    _, verdict = await grade_reference(backend, place, solve=True)
    assert verdict.kind is VerdictKind.INFRA
    assert "no solution/solve.sh" in verdict.reason


async def test_a_failing_health_check_is_no_verdict(backend: LocalBackend, tmp_path: Path) -> None:
    check = 'command = "test -f /app/none"\ninterval_sec = 0.01\nretries = 2'
    place = write_task(tmp_path / "one", {"task.toml": toml(environment_healthcheck=check)})
    _, verdict = await grade_reference(backend, place, solve=True)
    assert verdict.kind is VerdictKind.INFRA
    assert "health check" in verdict.reason


async def test_a_task_that_changes_during_a_run_is_not_graded(
    backend: LocalBackend, tmp_path: Path
) -> None:
    place = write_task(tmp_path / "one")
    task = read_task(place)
    (place / "tests" / "test.sh").write_text("#!/bin/sh\n")
    verdict = await make_grader(backend, tmp_path).grade_reference(
        task, solve=True, name="gold", deadline_s=30
    )
    assert verdict.kind is VerdictKind.INFRA
    assert "has changed since" in verdict.reason


@pytest.mark.parametrize(
    ("first", "argv"),
    [
        (b"#!/bin/bash -e\n", ["/bin/bash", "-e", "/x"]),
        (b"#!/usr/bin/env -S bash -e\n", ["/usr/bin/env", "-S bash -e", "/x"]),
        (b"#! /bin/sh", ["/bin/sh", "/x"]),
        (b"echo\n", ["sh", "/x"]),
        (b"", ["sh", "/x"]),
    ],
)
def test_a_script_is_run_as_its_first_line_says(
    tmp_path: Path, first: bytes, argv: list[str]
) -> None:
    (tmp_path / "x").write_bytes(first)
    assert script_argv(tmp_path / "x", "/x") == argv
