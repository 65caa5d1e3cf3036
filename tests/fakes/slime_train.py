"""A fake of slime's ``train.py`` as a job sees it: arguments, checkpoints, rollouts, evaluations.

The loop runs on an event loop in another thread as in slime. The policy is scripted.
``FAKE_DIE=STEP`` kills the process in the middle of that step's rollouts, once.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any

from runners.testing.completions import Completion, spoken
from runners.testing.scripted_engine import ScriptedEngine
from tests.fakes.sglang_router import Router
from tests.fakes.slime_rollout import Sample, make_train_data, run_group

SAYS = spoken([{"type": "text", "text": "I give up."}])
MARKER = "latest_checkpointed_iteration.txt"
WAIT_S = 120


def parse_arguments(words: list[str]) -> Namespace:
    """Parse the arguments that matter here; the others are Megatron's and SGLang's."""
    parser = ArgumentParser(allow_abbrev=False)
    for name in ("custom-generate-function-path", "custom-reward-post-process-path"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("hf-checkpoint", "prompt-data", "save", "load", "metadata-key", "label-key"):
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


class LoopThread:
    """An event loop on a thread, as slime's ``AsyncLoopThread``."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run it there and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)


def install_fake_modules(run: Any) -> None:
    """Make the modules importable that an evaluation function imports from slime."""
    types, async_utils = ModuleType("slime.utils.types"), ModuleType("slime.utils.async_utils")
    types.Sample = Sample  # type: ignore[attr-defined]
    async_utils.run = run  # type: ignore[attr-defined]
    for module in (ModuleType("slime"), ModuleType("slime.utils"), types, async_utils):
        sys.modules[module.__name__] = module


def next_groups(args: Namespace, rollout_id: int) -> list[list[Sample]]:
    """Return the groups of a rollout, numbered over the whole job."""
    rows = [json.loads(line) for line in Path(args.prompt_data).read_text().splitlines()]
    groups = []
    for place in range(args.rollout_batch_size):
        group = rollout_id * args.rollout_batch_size + place
        row = rows[group % len(rows)]
        groups.append(
            [
                Sample(
                    group_index=group,
                    index=group * args.n_samples_per_prompt + member,
                    prompt=row["prompt"],
                    label=row[args.label_key],
                    metadata=dict(row[args.metadata_key]),
                )
                for member in range(args.n_samples_per_prompt)
            ]
        )
    return groups


async def run_groups(args: Namespace, groups: list[list[Sample]], generate: Any) -> list[Any]:
    """Run all groups at once; with FAKE_DIE the process kills itself when the first one is done."""
    tasks = [asyncio.create_task(run_group(args, group, generate)) for group in groups]
    mark = Path(args.save) / "died"
    step = groups[0][0].group_index // args.rollout_batch_size + 1
    if os.environ.get("FAKE_DIE") == str(step) and not mark.exists():
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return list(await asyncio.gather(*tasks))


def train(args: Namespace) -> None:
    """Run the loop of ``slime/train.py``, without weights."""
    loop = LoopThread()
    install_fake_modules(loop.run)
    engine = ScriptedEngine()
    engine.always = Completion(SAYS)

    async def start_engine() -> Router:
        return await Router(await engine.__aenter__()).__aenter__()

    args.sglang_router_ip, args.sglang_router_port = loop.run(start_engine()).address
    generate = load_function(args.custom_generate_function_path)
    rewards = load_function(args.custom_reward_post_process_path)
    evaluate = load_function(args.eval_function_path) if args.eval_function_path else None
    marker = Path(args.load) / MARKER
    first = int(marker.read_text()) + 1 if marker.exists() else 0
    for rollout_id in range(first, args.num_rollout):
        if evaluate is not None and rollout_id == 0:
            evaluate(args, rollout_id, None, evaluation=True)
        groups = loop.run(run_groups(args, next_groups(args, rollout_id), generate))
        make_train_data(args, groups, rewards)
        print(f"step {rollout_id}: trained", flush=True)
        if (rollout_id + 1) % args.save_interval == 0:
            (Path(args.save) / MARKER).write_text(str(rollout_id))
        last = rollout_id == args.num_rollout - 1
        if evaluate is not None and ((rollout_id + 1) % args.eval_interval == 0 or last):
            evaluate(args, rollout_id, None, evaluation=True)


if __name__ == "__main__":
    train(parse_arguments(sys.argv[1:]))
