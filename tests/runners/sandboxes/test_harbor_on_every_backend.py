"""Trials of Harbor tasks on every backend: the oracle, an idle agent, and agents that cheat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from runners.tasks.contract import VerdictKind
from runners.tasks.harbor.suites import read_task
from runners.tasks.sets.readiness import find_readiness
from tests.fakes.harbor_tasks import TEST, toml, write_task
from tests.fakes.sandbox_backends import (
    NAMES,
    BackendUnderTest,
    docker_settings,
    open_backend,
)
from tests.runners.tasks.harbor.grading import grade_agent, grade_reference

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
BACKENDS = [
    pytest.param(
        name,
        marks=pytest.mark.slow if name in ("docker_program", "podman", "apptainer_program") else (),
    )
    for name in NAMES
    if name not in ("none", "docker")
]
PREBUILT = {
    "task.toml": toml(environment='docker_image = "python:3.12-slim"'),
    "environment/Dockerfile": None,
}
KILLS = TEST.replace("\n", "\nif [ -e /app/kill ]; then sh /app/kill; sleep 9; fi\n", 1)


@pytest_asyncio.fixture(params=BACKENDS, scope="module", loop_scope="module")
async def tested(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[BackendUnderTest]:
    async with open_backend(request.param, tmp_path_factory.mktemp(request.param)) as tested:
        yield tested


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep layouts of each test apart."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


async def test_the_oracle_is_solved_and_nothing_is_not(
    tested: BackendUnderTest, tmp_path: Path
) -> None:
    place = write_task(tmp_path / "one", PREBUILT)
    for solve, kind in ((True, VerdictKind.SOLVED), (False, VerdictKind.UNSOLVED)):
        _, verdict = await grade_reference(tested.backend, place, solve=solve)
        assert verdict.kind is kind, verdict


async def test_a_separate_verifier_gets_the_artifacts(
    tested: BackendUnderTest, tmp_path: Path
) -> None:
    text = PREBUILT["task.toml"]
    assert text is not None
    changes = {
        **PREBUILT,
        "task.toml": 'artifacts = ["/app/answer.txt"]\n'
        + text.replace("[verifier]", '[verifier]\nenvironment_mode = "separate"'),
    }
    place = write_task(tmp_path / "one", changes)
    for solve, kind in ((True, VerdictKind.SOLVED), (False, VerdictKind.UNSOLVED)):
        _, verdict = await grade_reference(tested.backend, place, solve=solve)
        assert verdict.kind is kind, verdict


async def test_a_dockerfile_is_built_once_where_images_are_built(
    tested: BackendUnderTest, tmp_path: Path
) -> None:
    if tested.name not in ("docker_program", "podman"):
        pytest.skip("it builds no images")
    dockerfile = "FROM python:3.12\nWORKDIR /app\nCOPY words.txt /app/\nRUN touch /ready\n"
    test = TEST.replace("if [", "if [ -e /ready ] && [", 1)
    changes = {"environment/Dockerfile": dockerfile, "tests/test.sh": test}
    for name in ("one", "two"):
        place = write_task(tmp_path / name, changes)
        _, verdict = await grade_reference(tested.backend, place, solve=True)
        assert verdict.kind is VerdictKind.SOLVED, verdict
    if tested.name == "docker_program":
        assert len(list((tested.root / "bin" / "images").iterdir())) == 1


async def test_a_dockerfile_needs_docker(tmp_path: Path) -> None:
    dockerfile = "FROM python:3.12\nRUN touch /ready\n"
    task = read_task(write_task(tmp_path / "one", {"environment/Dockerfile": dockerfile}))
    assert find_readiness(task, docker_settings()).state == "refused"  # egress=open, no-network
    settings = docker_settings(egress="none")
    assert find_readiness(task, settings).state == "ready"


async def test_a_link_to_the_tests_is_found(tested: BackendUnderTest, tmp_path: Path) -> None:
    place = write_task(tmp_path / "one", PREBUILT)
    for link in ("/app/answer.txt", "/logs/artifacts/x"):
        verdict = await grade_agent(tested.backend, place, f"ln -s /tests/expected.txt {link}")
        assert verdict.tampered == f"{link} leads to /tests/expected.txt", verdict


async def test_a_program_that_kills_the_verifier_is_unsolved(
    tested: BackendUnderTest, tmp_path: Path
) -> None:
    place = write_task(tmp_path / "one", {**PREBUILT, "tests/test.sh": KILLS})
    script = "echo 'kill -9 -1; for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done' > /app/kill"
    verdict = await grade_agent(tested.backend, place, script, deadline_s=20)
    assert verdict.kind is VerdictKind.UNSOLVED, verdict
    assert "untouched, the environment gets a verdict" in verdict.reason
