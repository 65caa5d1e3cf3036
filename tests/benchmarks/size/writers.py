"""Turns that one store takes a second from several processes, each with a file of its own."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np

from runners.records.store.run_store import RunStore
from tests.benchmarks.size.agent import GROWN_BYTES, read_code
from tests.fakes.records import CONFIG, a_turn

TURNS = 1500
"""Of each process."""
TOKENS = GROWN_BYTES // 4


def write(run_dir: Path, number: int, ready: Barrier) -> None:
    """Write one session's turns, each as long as an agent's."""
    ids = np.arange(TOKENS, dtype=np.int32)
    request = {"messages": [{"role": "user", "content": read_code()[:GROWN_BYTES]}]}
    with RunStore.open(run_dir) as store:
        store.claim_arrays(writer=number)
        session_id = f"train-{number:06}-00-00-a0"
        store.add_session(session_id, {})
        ready.wait()
        for index in range(TURNS):
            turn = a_turn(
                session_id,
                index,
                prompt_kept=2 * TOKENS * index,
                prompt_new=ids,
                output_ids=ids[:60],
                output_logprobs=np.full(60, -0.5, np.float32),
                request=request,
            )
            store.add_turn(turn)
        ready.wait()


def measure_writers(run_dir: Path, processes: int) -> float:
    """Return the turns per second, by the clock, of so many processes together."""
    RunStore.create(run_dir, CONFIG).close()
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Barrier(processes + 1)
    writers = [spawn.Process(target=write, args=(run_dir, n, ready)) for n in range(processes)]
    for writer in writers:
        writer.start()
    ready.wait()
    began = time.monotonic()
    ready.wait()
    took = time.monotonic() - began
    for writer in writers:
        writer.join()
    return processes * TURNS / took
