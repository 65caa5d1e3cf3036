"""The section ``executor``: local or Ray."""

from __future__ import annotations

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from conf.resume import resume_config
from conf.sections.executor import LocalExecutorConfig, RayExecutorConfig


def test_rollouts_run_in_the_drivers_process_unless_a_cluster_is_chosen() -> None:
    assert isinstance(compose([]).executor, LocalExecutorConfig)
    executor = compose(["executor=ray", "executor.address=head.example:6379"]).executor
    assert isinstance(executor, RayExecutorConfig)
    assert executor.address == "head.example:6379"


@pytest.mark.parametrize("address", ["auto", "local", "ray://10.0.0.1:10001", "10.0.0.1", ":6379"])
def test_an_address_is_that_of_a_head(address: str) -> None:
    with pytest.raises(ConfigError, match=r"executor.address=.* must be HOST:PORT"):
        compose(["executor=ray", f"executor.address='{address}'"])


def test_a_run_may_be_resumed_on_other_nodes() -> None:
    stored = compose([]).model_dump(mode="json")
    resumed = resume_config(stored, ["executor=ray", "executor.rollouts_per_node=2"])
    assert isinstance(resumed.executor, RayExecutorConfig)
    assert resumed.executor.rollouts_per_node == 2


def test_a_jobs_gateway_must_be_reached_from_all_its_nodes() -> None:
    job = [
        *("trainer=slime", "launch=ray", "launch.head=head", "launch.shared_dir=/shared"),
        *("model=qwen3_30b_a3b", "model.path=/shared/weights", "executor=ray"),
        *("task=jsonl", "task.path=/shared/tasks.jsonl"),
    ]
    with pytest.raises(ConfigError, match=r"executor=ray runs rollouts on 8: set gateway.host="):
        compose(job)
    assert compose([*job, "gateway.host=0.0.0.0"]).executor.kind == "ray"
    assert compose([*job, "launch.nodes=1"]).executor.kind == "ray"
