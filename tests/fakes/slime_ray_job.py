"""The driver of a slime job on a real Ray, with a stand-in for training: ``python -m … JOB ROUTER
RAY [SLIME]``.

With slime's source at SLIME its own ``train.py`` or ``train_async.py`` and ``RolloutManager`` run;
Megatron and SGLang are replaced. Without it a manager that calls the rollout functions in the same
way is driven by a loop like that of ``train.py``. Either way the manager is an actor of Ray.

Writes down which rollouts a step's batch has (``handed.jsonl``), in the manager, and which steps
were trained (``trained.jsonl``), in the driver.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import urllib.request
from argparse import Namespace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray

from conf.schema import Config
from launch.slime_arguments import train_script
from runners.campaigns.slime.run_config import VARIABLE, read_config
from tests.fakes import below_slime

TRAIN_S = 0.5
MARKER = "latest_checkpointed_iteration.txt"


def note(file: Path, content: dict[str, Any]) -> None:
    """Append a line."""
    with file.open("a") as lines:
        lines.write(json.dumps(content) + "\n")


def note_batch(rollout_id: int, args: Any, samples: list[Any], *_: Any) -> None:
    """Write down the rollouts of a batch; the place of slime's ``log_rollout_data``."""
    found = [sample.metadata["agentrl"] for sample in samples]
    sessions = {each["session"]: each["graded"] for each in found}
    note(
        Path(args.agentrl_run_dir) / "handed.jsonl", {"step": rollout_id + 1, "sessions": sessions}
    )


class Training:
    """The place of Megatron's processes."""

    def __init__(self, args: Any, workers: list[str]) -> None:
        self._job = Path(args.agentrl_run_dir)
        self._workers = workers
        self._version = 0

    def update_weights(self) -> None:
        """Give the engines the next version; slime counts from 1 in each execution."""
        self._version += 1
        for url in self._workers:
            body = json.dumps({"new_version": str(self._version), "abort_all_requests": False})
            asked = urllib.request.Request(f"{url}/update_weight_version", body.encode())
            try:
                urllib.request.urlopen(asked, timeout=10).read()
            except OSError:
                continue  # it is gone; its successor begins with the version in the file
        (self._job / "version").write_text(str(self._version))

    def async_train(self, rollout_id: int, batch: Any, **_: Any) -> list[Any]:
        """Train."""
        time.sleep(TRAIN_S)
        note(self._job / "trained.jsonl", {"step": rollout_id + 1, "driver": os.getpid()})
        return []

    def save_model(self, rollout_id: int, force_sync: bool = False) -> None:
        """Save."""
        (self._job / "checkpoints" / MARKER).write_text(str(rollout_id))

    def clear_memory(self) -> None:
        """Do nothing."""


def first_rollout(args: Any) -> int:
    """Return slime's rollout with which this execution begins."""
    marker = Path(args.agentrl_run_dir) / "checkpoints" / MARKER
    return int(marker.read_text()) + 1 if marker.exists() else 0


class RolloutManager:
    """A stand-in for slime's actor of this name."""

    def __init__(self, args: Namespace) -> None:
        from tests.fakes.slime_rollout import install_fake_modules

        install_fake_modules()
        entry_points = importlib.import_module("runners.campaigns.slime.entry_points")
        source = importlib.import_module("runners.campaigns.slime.data_source")
        self._args, self._calls = args, entry_points
        self._source = source.RunDataSource(args)

    def load(self, rollout_id: int) -> None:
        """Say where the job begins."""
        self._source.load(rollout_id)

    def generate(self, rollout_id: int) -> list[int]:
        """Gather a batch, and return the numbers of its rollouts."""
        from tests.fakes.slime_rollout import make_train_data, run_rollout_function

        calls = self._calls
        groups = run_rollout_function(self._args, rollout_id, self._source, calls.generate_rollout)
        flat = [made for group in groups for siblings in group for made in siblings]
        note_batch(rollout_id, self._args, flat)
        found: list[int] = make_train_data(self._args, groups, calls.post_process_rewards)[
            "rollout_ids"
        ]
        return found

    def eval(self, rollout_id: int) -> None:
        """Evaluate."""
        self._calls.evaluate(self._args, rollout_id, self._source, evaluation=True)


def run_like_slime(args: Namespace, config: Config, training: Training) -> None:
    """Run a loop like that of ``train.py``."""
    manager: Any = ray.remote(num_cpus=1)(RolloutManager).remote(args)
    first = first_rollout(args)
    ray.get(manager.load.remote(first - 1))
    training.update_weights()
    every = config.run.eval_every
    for rollout_id in range(first, config.run.steps):
        if rollout_id == 0 and every:
            ray.get(manager.eval.remote(0))
        training.async_train(rollout_id, ray.get(manager.generate.remote(rollout_id)))
        training.save_model(rollout_id)
        training.update_weights()
        if every and (rollout_id + 1) % every == 0:
            ray.get(manager.eval.remote(rollout_id))
    ray.kill(manager)


def run_slime(args: Any, config: Config, training: Training) -> None:
    """Run slime's own loop with its own manager."""
    rollout: Any = importlib.import_module("slime.ray.rollout")
    script: Any = importlib.import_module(train_script(config).removesuffix(".py"))
    rollout.start_rollout_servers = start_no_servers
    rollout.log_rollout_data = note_batch
    rollout.log_eval_rollout_data = rollout.init_http_client = rollout.init_tracking = do_nothing
    script.init_tracking = script.finish_tracking = do_nothing
    script.create_placement_groups = lambda args: {"rollout": None, "actor": None}

    def create_models(args: Any, placed: Any, manager: Any) -> tuple[Training, None]:
        args.start_rollout_id = first_rollout(args)
        ray.get(manager.load.remote(args.start_rollout_id - 1))
        ranks = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
        ray.get(manager.set_train_parallel_config.remote(ranks))
        return training, None

    script.create_training_models = create_models
    script.train(args)


def start_no_servers(args: Any, placed: Any) -> tuple[dict[str, Any], list[Any]]:
    """Start nothing: the engines run already."""
    return {}, []


def do_nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def main(job: Path, router: str, address: str, slime: str | None) -> None:
    """Run the job to its end."""
    config = read_config(job)
    environment = {VARIABLE: str(job), "OMP_NUM_THREADS": "1"}
    runtime: dict[str, Any] = {"env_vars": environment}
    if slime:
        sys.path.append(slime)
        below_slime.install(replace_ray=False)
        runtime["worker_process_setup_hook"] = "tests.fakes.below_slime.install_in_worker"
        runtime["env_vars"] = {**environment, "SLIME_SOURCE": slime}
    ray.init(address=address, runtime_env=runtime, log_to_driver=True)
    if slime:
        args: Any = importlib.import_module("tests.runners.campaigns.slime.real_loop").parse(config)
    else:
        weights = config.model.path
        sizes = (config.run.tasks_per_step, config.run.rollouts_per_task)
        args = Namespace(
            hf_checkpoint=str(weights), use_rollout_routing_replay=False,
            rollout_batch_size=sizes[0], n_samples_per_prompt=sizes[1],
        )  # fmt: skip
    where = urlsplit(router)
    args.sglang_router_ip, args.sglang_router_port = where.hostname, where.port
    args.agentrl_run_dir = str(job)
    with urllib.request.urlopen(f"{router}/workers", timeout=30) as answer:
        workers = [worker["url"] for worker in json.loads(answer.read())["workers"]]
    (run_slime if slime else run_like_slime)(args, config, Training(args, workers))
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
    sys.stdout.flush()
    os._exit(0)  # stand-ins of slime's modules leave threads
