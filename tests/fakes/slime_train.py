"""A fake of slime's ``train.py`` as a job sees it: arguments, checkpoints, rollouts, evaluations.

The policy is scripted, and served on a thread of its own.
``FAKE_DIE=STEP`` kills the process in the middle of that step's rollouts, once.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sqlite3
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from agentrl.testing.completions import Completion, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from tests.fakes.sglang_router import Router
from tests.fakes.slime_rollout import (
    install_fake_modules,
    make_train_data,
    run_rollout_function,
)

SAYS = spoken([{"type": "text", "text": "I give up."}])
MARKER = "latest_checkpointed_iteration.txt"
WAIT_S = 120


def parse_arguments(words: list[str]) -> Namespace:
    """Parse the arguments that matter here; the others are Megatron's and SGLang's."""
    parser = ArgumentParser(allow_abbrev=False)
    for name in ("rollout-function-path", "data-source-path", "custom-reward-post-process-path"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("hf-checkpoint", "save", "load"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("num-rollout", "rollout-batch-size", "n-samples-per-prompt", "save-interval"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--eval-function-path")
    parser.add_argument("--eval-interval", type=int)
    parser.add_argument("--use-rollout-routing-replay", action="store_true")
    found, _ = parser.parse_known_args(words)
    return found


def load_function(path: str) -> Any:
    """Load a function by its path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


class EngineThread:
    """An engine behind slime's router, on a loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.engine = ScriptedEngine()
        self.engine.always = Completion(SAYS)
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def start(self) -> tuple[str, int]:
        """Start both; return the router's address."""

        async def start() -> Router:
            return await Router(await self.engine.__aenter__()).__aenter__()

        return asyncio.run_coroutine_threadsafe(start(), self.loop).result(WAIT_S).address


def die_in_step(args: Namespace, step: int) -> None:
    """With FAKE_DIE the process kills itself when the first group of that step is done, once."""
    mark = Path(args.save) / "died"
    if os.environ.get("FAKE_DIE") != str(step) or mark.exists():
        return

    def watch() -> None:
        database = sqlite3.connect(Path(args.save).parent / "store.sqlite")
        query = (
            "SELECT 1 FROM rollout WHERE step = ? AND split = 'train' AND counts "
            "GROUP BY group_index HAVING count(*) = ?"
        )
        while not database.execute(query, (step, args.n_samples_per_prompt)).fetchall():
            time.sleep(0.02)
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def train(args: Namespace) -> None:
    """Run the loop of ``slime/train.py``, without weights: only their version changes."""
    install_fake_modules()
    served = EngineThread()
    args.sglang_router_ip, args.sglang_router_port = served.start()
    generate = load_function(args.rollout_function_path)
    rewards = load_function(args.custom_reward_post_process_path)
    evaluate = load_function(args.eval_function_path) if args.eval_function_path else None
    source = load_function(args.data_source_path)(args)
    marker = Path(args.load) / MARKER
    first = int(marker.read_text()) + 1 if marker.exists() else 0
    source.load(first - 1)
    for rollout_id in range(first, args.num_rollout):
        if evaluate is not None and rollout_id == 0:
            evaluate(args, rollout_id, source, evaluation=True)
        die_in_step(args, rollout_id + 1)
        groups = run_rollout_function(args, rollout_id, source, generate)
        make_train_data(args, groups, rewards)
        print(f"step {rollout_id}: trained", flush=True)
        served.engine.weight_version = str(rollout_id - first + 2)  # 1: those it began with
        last = rollout_id == args.num_rollout - 1
        if (rollout_id + 1) % args.save_interval == 0 or last:
            (Path(args.save) / MARKER).write_text(str(rollout_id))
            source.save(rollout_id)
        # Not after the last one, as in slime: it passes no num_rollout here.
        if evaluate is not None and (rollout_id + 1) % args.eval_interval == 0:
            evaluate(args, rollout_id, source, evaluation=True)


if __name__ == "__main__":
    train(parse_arguments(sys.argv[1:]))
