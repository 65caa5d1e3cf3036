"""Fixtures for the tests of fault injection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.sections.sandbox import LocalSandboxConfig
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import write_tiny_tokenizer
from runners.sandboxes.local.backend import LocalBackend
from runners.services.faults.proxy import restore_clock
from runners.tasks.contract import Task
from tests.runners.services.faults.run_parts import RunParts
from tests.runners.tasks.example_repositories import make_task


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the tiny tokenizer."""
    return write_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """A task with real tests."""
    return make_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="session")
def sandboxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBackend]:
    """Local sandboxes that work on any machine and need no running gateway."""
    settings = LocalSandboxConfig(
        kind="local", isolation="none", memory_mb=1024, processes=64, file_mb=8, cpu_s=20, warm=0
    )
    backend = LocalBackend(settings, tmp_path_factory.mktemp("backend") / "root")
    yield backend
    asyncio.run(backend.close())


@pytest.fixture
def parts(
    tmp_path: Path, tokenizer_dir: Path, task: Task, sandboxes: LocalBackend
) -> Iterator[RunParts]:
    """A run's store and the parts around it."""
    with RunStore.create(tmp_path / "run", {}) as store:
        yield RunParts(tmp_path, tokenizer_dir, task, sandboxes, store)
    restore_clock()
