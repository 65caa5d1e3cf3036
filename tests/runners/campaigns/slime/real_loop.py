"""Run agentrl's plug under slime's real loop, ``RolloutManager`` and division into ranks.

    git clone https://github.com/THUDM/slime SLIME && git -C SLIME checkout 624b824
    python -m tests.runners.campaigns.slime.real_loop SLIME MODE STEPS DIR [DONE]

MODE: none, step or stream. DONE: continue from the checkpoint after so many steps. Ray, Megatron
and SGLang are replaced (``tests/fakes/below_slime.py``); the arguments are those that the launcher
writes, gateway, sandboxes and grader are real. Prints the order of what happened, and the steps. No
test runs it: it needs slime's source, and no test may fetch that.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose, to_json
from conf.schema import Config
from launch import flags
from launch.plan import plan_job
from launch.slime_arguments import train_script
from runners.campaigns.slime import worker
from runners.campaigns.slime.loop import run_in_loop
from runners.campaigns.slime.run_config import VARIABLE
from runners.records.store.run_store import RunStore
from tests.fakes import below_slime
from tests.fakes.cluster_config import job_lines
from tests.fakes.cluster_tasks import write_job_inputs
from tests.fakes.sglang_router import Router
from tests.fakes.slime_train import SAYS

MEGATRON = {
    "context_parallel_size": 1, "data_pad_size_multiplier": 128, "balance_data": False,
    "max_tokens_per_gpu": 8192, "virtual_pipeline_model_parallel_size": None,
    "num_layers": 2, "padded_vocab_size": None, "moe_layer_freq": None,
}  # fmt: skip
"""Arguments of Megatron's parser that slime's own code reads."""
FIXED: dict[str, Any] = {
    "debug_train_only": False, "debug_rollout_only": False, "load_debug_rollout_data": None,
    "save_debug_rollout_data": None, "rollout_data_transport": "object-store", "reward_key": None,
    "start_rollout_id": None, "use_critic": False, "offload_rollout": False,
    "offload_train": False, "eval_datasets": [], "ci_test": False,
    "sglang_speculative_algorithm": None, "custom_config_path": None, "use_tensorboard": False,
}  # fmt: skip
"""Arguments that slime's checks would derive."""


def write_job(root: Path, mode: str, steps: int) -> Config:
    """Write a job's directory and what it refers to; return its configuration."""
    if not (root / "weights").exists():
        write_job_inputs(root, 5, repository=root)
    config = compose(
        [
            *job_lines(root, "ray", "launch.head=127.0.0.1"),
            "launch.name=job",
            *(f"run.steps={steps}", "run.tasks_per_step=2", "run.rollouts_per_task=2"),
            *(
                "run.eval_tasks=1",
                "run.eval_every=2",
                "trainer.save_every=2",
                f"run.overlap={mode}",
            ),
            *("trainer.rollout_nodes=1", "launch.nodes=2", "rollout.attempts=1"),
        ]
    )
    (root / "job" / "checkpoints").mkdir(parents=True, exist_ok=True)
    (root / "job" / "config.json").write_text(to_json(config))
    return config


class Training:
    """Megatron's place: it takes a second for a step, and notes what it was told."""

    def __init__(self, served: ScriptedEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.log: list[str] = []
        self._served = served
        self._loop = loop
        self._version = 0

    def update_weights(self) -> None:
        """Abort what is generated, as SGLang's pause does, and serve the next version."""
        self._version += 1
        self.log.append(f"weights {self._version}")

        def switch() -> None:
            self._served._abort({"abort_all": True})
            self._served.weight_version = str(self._version)

        self._loop.call_soon_threadsafe(switch)

    def async_train(self, rollout_id: int, ranks: list[Any], **_: Any) -> None:
        """Train."""
        rollouts = {each for rank in ranks for each in rank.inner["rollout_ids"]}
        self.log.append(f"train {rollout_id}: {len(rollouts)} rollouts")
        time.sleep(1.0)

    def save_model(self, rollout_id: int, force_sync: bool = False) -> None:
        """Save."""
        self.log.append(f"save {rollout_id}")

    def clear_memory(self) -> None:
        """Do nothing."""


def run(mode: str, steps: int, root: Path, done: int) -> None:
    """Run the loop, and print what happened."""
    config = write_job(root, mode, steps)
    job = root / "job"
    os.environ[VARIABLE] = str(job)
    below_slime.install()
    rollout: Any = importlib.import_module("slime.ray.rollout")
    script: Any = importlib.import_module(train_script(config).removesuffix(".py"))
    served, loop = ScriptedEngine(), asyncio.new_event_loop()
    served.always = Completion(SAYS, delay_s=0.3)
    threading.Thread(target=loop.run_forever, daemon=True).start()
    training = Training(served, loop)

    async def serve() -> Router:
        return await Router(await served.__aenter__()).__aenter__()

    def start_servers(args: Any, placed: Any) -> tuple[dict[str, Any], list[Any]]:
        router = asyncio.run_coroutine_threadsafe(serve(), loop).result()
        args.sglang_router_ip, args.sglang_router_port = router.address
        return {}, []

    def create_models(args: Any, placed: Any, manager: Any) -> tuple[Training, None]:
        args.start_rollout_id = done
        below_slime.get(manager.load.remote(done - 1))
        ranks = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
        below_slime.get(manager.set_train_parallel_config.remote(ranks))
        return training, None

    def nothing(*_: Any, **__: Any) -> None:
        return None

    rollout.start_rollout_servers, rollout.init_http_client = start_servers, nothing
    rollout.init_tracking = script.init_tracking = script.finish_tracking = nothing
    script.create_training_models = create_models
    script.create_placement_groups = lambda args: {"rollout": None, "actor": None}
    manager: Any = rollout.RolloutManager
    for name in ("generate", "eval"):
        setattr(manager.cls, name, _noted(getattr(manager.cls, name), name, training.log))
    try:
        script.train(parse(config))
    finally:
        print("\n".join(training.log), flush=True)
        run_in_loop(worker.close(job))
    with RunStore.open(job, read_only=True) as store:
        for row in store.steps():
            ages = {key: row.metrics[f"policy/staleness_{key}"] for key in ("mean", "max")}
            print(f"step {row.step} {row.state}, staleness {ages}")
        names = [record.rollout_id for record in store.rollouts(split="train", counts=True)]
        print(f"{len(names)} rollouts, {len(set(names))} of them different")
        print(f"evaluations of steps {[row.step for row in store.evaluations()]}")


def _noted(call: Any, name: str, log: list[str]) -> Any:
    def noted(manager: Any, rollout_id: int) -> Any:
        found = call(manager, rollout_id)
        log.append(f"{name} {rollout_id} done")
        return found

    return noted


def parse(config: Config) -> argparse.Namespace:
    """Return the launcher's arguments as slime's own parser reads them."""
    found: Any = importlib.import_module("slime.utils.arguments")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    found.get_slime_extra_args_provider()(parser)
    for name in ("--global-batch-size", "--micro-batch-size", "--save-interval"):
        if name not in parser._option_string_actions:
            parser.add_argument(name, type=int)
    for name in ("--save", "--load", "--hf-checkpoint"):
        if name not in parser._option_string_actions:
            parser.add_argument(name)
    args, _ = parser.parse_known_args(flags.to_words(plan_job(config).arguments))
    vars(args).update(MEGATRON | FIXED)
    args.eval_function_path = args.eval_function_path or args.rollout_function_path
    return args


if __name__ == "__main__":
    slime, mode, steps, root, *more = sys.argv[1:]
    sys.path.append(slime)
    run(mode, int(steps), Path(root).resolve(), int(more[0]) if more else 0)
    sys.stdout.flush()
    os._exit(0)  # the threads of actors and engine would go on
