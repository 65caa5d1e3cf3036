"""Plan topologies: each is consistent, or refused with a reason."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.compose import compose
from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.cluster_model import ClusterModel
from launch import flags
from launch.cluster_job import ClusterJob, make_cluster_job
from launch.slime_arguments import build_slime_arguments
from launch.topology import Topology, plan_topology
from launch.topology_rules import find_broken_rules
from tests.fakes.cluster_config import MODELS, a_config

POWERS = st.sampled_from([1, 2, 3, 4, 8, 16, 32])
CONFIGS = {model: a_config(model=model) for model in MODELS}


@st.composite
def configs(draw: st.DrawFn) -> Config:
    config = CONFIGS[draw(st.sampled_from(MODELS))]
    assert isinstance(config.model, ClusterModel)
    layout = config.model.layout.model_copy(
        update={
            **{name: draw(POWERS) for name in ("tensor", "pipeline", "context", "expert")},
            **{name: draw(POWERS) for name in ("engine_gpus", "engine_data", "engine_expert")},
            "expert_tensor": draw(st.sampled_from([1, 2])),
            "last_stage_layers": draw(st.none() | st.integers(1, 30)),
            "tokens_per_gpu": draw(st.sampled_from([4096, 16384, 131072])),
        }
    )
    sections = {
        "model": config.model.model_copy(update={"layout": layout}),
        "trainer": config.trainer.model_copy(
            update={"rollout_nodes": draw(st.integers(0, 5)), "minibatches": draw(POWERS)}
        ),
        "launch": config.launch.model_copy(
            update={"nodes": draw(st.integers(1, 17)), "gpus_per_node": draw(POWERS)}
        ),
        "run": config.run.model_copy(update={"tasks_per_step": draw(st.integers(1, 64))}),
    }
    return config.model_copy(update=sections)


@settings(max_examples=60)
@given(config=configs())
def test_a_random_topology_is_refused_with_a_reason_or_consistent(config: Config) -> None:
    job = make_cluster_job(config)
    try:
        found = plan_topology(job)
    except ConfigError as error:
        for fault in error.faults:
            assert re.search(r"^(model\.layout|trainer\.|launch\.|run\.)", fault), fault
            assert re.search(r"(: |; )[a-z].*", fault), fault
        return
    consistent(found, job)
    assert flags.check(build_slime_arguments(job, found)) == []


def consistent(found: Topology, job: ClusterJob) -> None:
    experts, model = job.architecture.experts, job.model
    dense = found.tensor * found.pipeline * found.context * found.data
    routed = found.expert * found.expert_tensor * found.pipeline * found.expert_data
    assert dense == routed == found.train_gpus
    gpus = found.train_gpus if found.colocated else found.train_gpus + found.rollout_gpus
    assert gpus == found.nodes * found.gpus_per_node
    assert found.engines * found.engine_gpus == found.rollout_gpus
    assert found.engine_data * found.engine_tensor == found.engine_gpus
    assert sum(found.stage_layers) == job.architecture.layers
    assert len(found.stage_layers) == found.pipeline
    assert min(found.stage_layers) >= 1
    assert (experts.number if experts else 1) % found.expert == 0
    assert model.layout.tokens_per_gpu * found.context >= model.max_context_tokens
    assert found.rollouts % (found.batch) == 0
    assert found.batch % found.data == 0


@pytest.mark.parametrize("model", MODELS)
def test_the_shipped_layouts_keep_every_rule(model: str) -> None:
    assert find_broken_rules(make_cluster_job(CONFIGS[model])) == []


def test_the_layouts_of_slime_s_own_scripts_are_accepted() -> None:
    one_node = ["launch.nodes=1", "model.layout.context=1", "model.max_context_tokens=20480"]
    assert plan_topology(make_cluster_job(a_config(*one_node))).data == 2
    split = a_config("launch.nodes=16", "trainer.rollout_nodes=8", model="qwen3_235b_a22b")
    found = plan_topology(make_cluster_job(split))
    assert (found.train_gpus, found.rollout_gpus, found.engines, found.data) == (64, 64, 2, 2)
    assert found.stage_layers == (24, 24, 24, 22)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.layout.context=3"], "tensor × pipeline × context = 12 does not divide the 64"),
        (["model.layout.tensor=16"], "does not divide launch.gpus_per_node=8"),
        (["model.layout.expert=7"], "expert=7 does not divide the model's 128 experts"),
        (["model.layout.expert=128"], "expert × expert_tensor × pipeline = 128 does not divide"),
        (["model.layout.pipeline=5"], "set model.layout.last_stage_layers=8"),
        (["model.layout.last_stage_layers=8"], "is for several stages"),
        (["model.layout.tokens_per_gpu=100"], "less than model.max_context_tokens=40960"),
        (["trainer.minibatches=5"], "trainer.minibatches=5 does not divide"),
        (["run.tasks_per_step=3"], "make it a multiple of 8"),
        (["model.layout.engine_data=3"], "engine_data=3 does not divide"),
        (["model.layout.engine_expert=3"], "choose a common divisor"),
        (["model.layout.engine_gpus=12"], "neither a part nor a multiple"),
        (["trainer.rollout_nodes=8"], "leaves none of launch.nodes=8 to train"),
        (["launch.shared_dir=shared"], "launch.shared_dir=shared is relative"),
        (["launch.dashboard_port=6379"], "both 6379"),
        (
            ["model.layout.expert=1", "model.layout.dispatcher=deepep"],
            "has nothing to send",
        ),
    ],
)
def test_a_broken_rule_is_named_with_its_fix(overrides: list[str], message: str) -> None:
    if "run.tasks_per_step=3" in overrides:
        overrides = [*overrides, "run.rollouts_per_task=5"]
    found = find_broken_rules(make_cluster_job(a_config(*overrides)))
    assert any(message in fault for fault in found), found


def test_a_file_of_hosts_that_each_directory_would_have_its_own_of_is_refused() -> None:
    job = make_cluster_job(a_config("launch.hosts_file=hosts", launch="ssh"))
    assert any("launch.hosts_file=hosts is relative" in fault for fault in find_broken_rules(job))
    assert find_broken_rules(make_cluster_job(a_config(launch="ssh"))) == []


def test_all_broken_rules_are_reported_at_once() -> None:
    broken = ["model.layout.tensor=3", "model.layout.expert=7", "trainer.minibatches=5"]
    found = find_broken_rules(make_cluster_job(a_config(*broken, "launch.shared_dir=x")))
    for key in ("layout.tensor=3", "layout.expert=7", "minibatches=5", "shared_dir=x"):
        assert any(key in fault for fault in found), (key, found)


def test_the_suggested_layer_split_is_valid() -> None:
    (fault,) = find_broken_rules(
        make_cluster_job(a_config("model.layout.pipeline=4", model="glm4_5_106b_a12b"))
    )
    fix = fault.rpartition(" ")[2]
    assert (
        find_broken_rules(
            make_cluster_job(a_config("model.layout.pipeline=4", fix, model="glm4_5_106b_a12b"))
        )
        == []
    )


def test_a_run_on_this_machine_has_no_scripts() -> None:
    with pytest.raises(ConfigError, match="launch=local has no scripts"):
        make_cluster_job(compose([]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.layout.expert=2", "model.layout.expert=2 spreads experts, and the model has none"),
        ("model.layout.engine_expert=2", "model.layout.engine_expert=2 spreads experts"),
        ("model.layout.dispatcher=deepep", "the model has none: set it to alltoall"),
    ],
)
def test_a_dense_model_refuses_what_spreads_experts(override: str, message: str) -> None:
    (found,) = find_broken_rules(make_cluster_job(a_config(override, model="qwen3_8b")))
    assert message in found
