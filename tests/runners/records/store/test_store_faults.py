"""The store under two processes, ``kill -9``, and disks that are full or not ours."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from conf.errors import ExitCode
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.services.stop_signals import read_driver
from tests.fakes.records import CONFIG, a_rollout, a_turn
from tests.fakes.small_disk import mount_small_disk

NOBODY = 65534


def in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked process; returns its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def exit_status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.002)


def write_turns(run_dir: Path, session_id: str, count: int) -> None:
    with RunStore.open(run_dir) as store:
        store.add_session(session_id, {})
        for index in range(count):
            store.add_turn(a_turn(session_id, index))


def holds(store: RunStore, session_id: str, count: int) -> bool:
    return len(store.turns(session_id)) >= count


def write_rollouts(run_dir: Path, count: int) -> None:
    with RunStore.open(run_dir) as store:
        for index in range(count):
            record = a_rollout(f"train-{index:06}-00-00")
            store.put_rollout(a_rollout(record.rollout_id, counts=False, reward=None))
            store.put_rollout(record)


def test_two_processes_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    with RunStore.create(tmp_path, CONFIG):
        pass
    gateway = in_child(lambda: write_turns(tmp_path, "s", 300))
    driver = in_child(lambda: write_rollouts(tmp_path, 300))
    assert (exit_status(gateway), exit_status(driver)) == (0, 0)
    with RunStore.open(tmp_path, read_only=True) as store:
        assert [turn.index for turn in store.turns("s")] == list(range(300))
        assert len(store.rollouts(counts=True)) == 300


def test_kill_9_leaves_no_row_without_its_arrays(tmp_path: Path) -> None:
    with RunStore.create(tmp_path, CONFIG) as store:
        for life in range(6):
            session = f"s{life}"
            writer = in_child(partial(write_turns, tmp_path, session, 10**6))
            wait_for(partial(holds, store, session, 5 * life + 1))
            os.kill(writer, signal.SIGKILL)
            assert exit_status(writer) == -signal.SIGKILL
        for life in range(6):
            turns = store.turns(f"s{life}")
            assert [turn.index for turn in turns] == list(range(len(turns)))
            assert all(turn.output_ids.tolist() == [100 + turn.index, 7] for turn in turns)


def test_kill_9_of_the_driver_leaves_whole_rollouts(tmp_path: Path) -> None:
    with RunStore.create(tmp_path, CONFIG) as store:
        driver = in_child(lambda: write_rollouts(tmp_path, 10**6))
        wait_for(lambda: len(store.rollouts(counts=True)) > 20)
        os.kill(driver, signal.SIGKILL)
        exit_status(driver)
        records = store.rollouts()
        assert all(record.reward == 1.0 for record in records if record.counts)
        assert sum(not record.counts for record in records) <= 1
        assert len({record.rollout_id for record in records}) == len(records)


def drive(run_dir: Path) -> None:
    with RunStore.open(run_dir) as store:
        store.set_state(State.RUNNING)
        time.sleep(60)


def test_a_run_has_one_driver_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    with RunStore.create(tmp_path, CONFIG) as store:
        driver = in_child(lambda: drive(tmp_path))
        wait_for(lambda: store.state().driven)
        with pytest.raises(StoreError, match=f"driven by process {driver}") as caught:
            store.set_state(State.RUNNING)
        assert caught.value.exit_code == ExitCode.USAGE
        os.kill(driver, signal.SIGKILL)
        wait_for(lambda: not store.state().driven)  # a zombie drives nothing
        exit_status(driver)
        assert store.state().state is State.RUNNING
        store.set_state(State.RUNNING)
        state = store.state()
        assert state.driver is not None
        assert state.driver.pid == os.getpid()


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up root's power over files, if this process has it."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public_dir() -> Iterator[Path]:
    """Return a directory that other users can reach, which ``tmp_path`` is not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_run_is_not_created_where_nothing_can_be_written(public_dir: Path) -> None:
    public_dir.chmod(0o555)
    for run_dir in (public_dir, public_dir / "new" / "run"):
        with as_nobody(), pytest.raises(StoreError, match=r"cannot be|choose another") as caught:
            RunStore.create(run_dir, CONFIG)
        assert caught.value.exit_code == ExitCode.USAGE
    assert list(public_dir.iterdir()) == []


def test_a_finished_run_is_read_from_a_directory_that_cannot_be_written(public_dir: Path) -> None:
    with RunStore.create(public_dir, CONFIG) as store:
        store.put_rollout(a_rollout())
    public_dir.chmod(0o555)
    with as_nobody(), RunStore.open(public_dir, read_only=True) as reader:
        assert reader.rollouts() == [a_rollout()]
    with as_nobody(), pytest.raises(StoreError):
        RunStore.open(public_dir)


FILL = textwrap.dedent(
    """
    import resource, sys
    from pathlib import Path
    from runners.records.store.run_store import RunStore
    from runners.records.store.store_error import StoreError
    from tests.fakes.records import CONFIG, a_turn

    limit = int(sys.argv[2])
    store = RunStore.create(Path(sys.argv[1]), CONFIG)
    store.add_session("s", {})
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    stored = 0
    try:
        while stored < 100_000:
            store.add_turn(a_turn("s", stored, request={"text": "x" * 2000}))
            stored += 1
    except StoreError as error:
        print(f"{error.exit_code}: {error}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert len(store.turns("s")) == stored > 0, (len(store.turns("s")), stored)
    (Path(sys.argv[1]) / "ballast").unlink(missing_ok=True)
    store.add_turn(a_turn("s", stored))
    store.close()
    with RunStore.open(Path(sys.argv[1])) as again:
        assert [turn.index for turn in again.turns("s")] == list(range(stored + 1))
        assert again.query("PRAGMA integrity_check")[0][0] == "ok"
    """
)


def fill(prefix: list[str], run_dir: Path, limit: int) -> str:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", FILL, str(run_dir), str(limit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_that_may_not_grow_harms_nothing_stored(tmp_path: Path) -> None:
    said = fill([], tmp_path / "run", 600_000)
    assert said.startswith("4: ")
    assert "disk is full" in said or "may not grow" in said or "the disk failed" in said


def test_a_full_disk_is_reported_and_harms_nothing_stored(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=1500k tmpfs {tmp_path} && fallocate -l 300k {tmp_path}/b && "
    prepare = mount + f"mkdir {tmp_path}/run && mv {tmp_path}/b {tmp_path}/run/ballast && "
    prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    able = subprocess.run([*prefix, prepare + "true"], capture_output=True, check=False)
    if able.returncode != 0:
        pytest.skip(f"no private tmpfs on this machine: {able.stderr.decode().strip()}")
    said = fill([*prefix, prepare + 'exec "$0" "$@"'], tmp_path / "run", 0)
    assert said.startswith("4: ")
    assert "the disk is full" in said


def test_a_disk_without_room_for_a_new_store_is_called_full_at_any_size(tmp_path: Path) -> None:
    said = []
    with mount_small_disk(tmp_path / "disk") as disk:
        for kilobytes in range(8, 128, 8):
            disk.resize(kilobytes)
            with pytest.raises(StoreError) as caught:
                RunStore.create(disk.place / "run", CONFIG)
            said.append(str(caught.value))
            shutil.rmtree(disk.place / "run", ignore_errors=True)
    assert {"the disk is full" in text for text in said} == {True}, said


def test_a_copy_of_a_run_that_is_driven_is_no_run_of_its_driver(tmp_path: Path) -> None:
    run_dir, moved, copy = tmp_path / "run", tmp_path / "moved", tmp_path / "copy"
    RunStore.create(run_dir, CONFIG).close()
    driver = in_child(lambda: drive(run_dir))
    with RunStore.open(run_dir, read_only=True) as store:
        wait_for(lambda: store.state().driven)
    shutil.copytree(run_dir, copy)
    with RunStore.open(copy, read_only=True) as store:
        assert (store.state().driven, store.state().copied) == (False, True)
    with pytest.raises(StoreError, match="is a copy"):
        read_driver(copy)
    run_dir.rename(moved)
    living = read_driver(moved)
    assert living is not None
    assert living.pid == driver, "a directory that is moved keeps its driver"
    with RunStore.open(copy) as store:
        store.set_state(State.RUNNING)
        assert store.state().driven, "a copy can be continued on its own"
    os.kill(driver, signal.SIGKILL)
    exit_status(driver)
    assert read_driver(moved) is None
