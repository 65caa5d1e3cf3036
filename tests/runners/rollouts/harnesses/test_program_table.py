"""Agent programs of the table in docs/agents.md keep their promises in the real sandbox.

``pytest -m agents`` runs it with the other tests of real programs; ``python -m tests.programs``
prints the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.compose import compose
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxBackend
from tests.runners.rollouts.harnesses.program_table import CASES, Case, try_case

pytestmark = [pytest.mark.integration, pytest.mark.agents, pytest.mark.slow]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxBackend]:
    root = tmp_path_factory.mktemp("backend") / "root"
    backend = make_backend(compose(["harness=pi"]).sandbox, root)
    yield backend
    asyncio.run(backend.close())


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_program_reads_its_task_once_and_all_it_sampled_is_trained_in_the_right_branches(
    case: Case, backend: SandboxBackend, tmp_path: Path
) -> None:
    row = await try_case(case, backend, tmp_path)
    print(f"\n{row}")
    assert not row.problems, "\n".join(row.problems)
