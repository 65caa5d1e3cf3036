"""The memory estimate, compared with configurations that are known to have run."""

from __future__ import annotations

import functools
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from conf.errors import ConfigError
from conf.schema import Config
from launch.cluster_job import make_cluster_job
from launch.memory import MemoryPlan, estimate_memory, estimate_training, find_node_memory
from launch.plan import plan_job
from launch.plan_table import render_job
from launch.topology import plan_topology
from tests.fakes.cluster_config import MODELS, a_config

POD_MEMORY = "launch.pod.resources.memory"


def memory_of(*overrides: str, model: str = "qwen3_30b_a3b") -> MemoryPlan:
    job = make_cluster_job(a_config(*overrides, model=model))
    return estimate_memory(job, plan_topology(job))


def test_a_sample_of_100k_tokens_fits_80_gb_at_cp_8_and_one_of_152k_does_not() -> None:
    job = make_cluster_job(a_config(model="qwen3_6_35b_a3b"))
    found = plan_topology(job)
    assert found.context == 8
    assert estimate_training(job, found, 100_000 // 8).fits
    assert not estimate_training(job, found, 152_000 // 8).fits
    assert 100_000 <= estimate_memory(job, found).segment_tokens < 152_000


@pytest.mark.parametrize("model", MODELS)
def test_the_shipped_layouts_fit(model: str) -> None:
    assert memory_of(model=model).faults == ()


def test_the_weights_of_a_dense_model_are_shared_by_its_tensor_ranks() -> None:
    for tensor in (2, 4, 8):
        parts = dict(memory_of(f"model.layout.tensor={tensor}", model="qwen3_8b").training.parts)
        assert parts["weights"] == pytest.approx(2 * 8.19e9 / tensor / 2**30, rel=0.01)


def test_a_tied_embedding_is_counted_once_unless_its_ends_are_on_two_stages() -> None:
    embedding = 2 * 151936 * 4096 / 2 / 2**30  # bfloat16, TP 2

    def weights(*overrides: str) -> float:
        return dict(memory_of(*overrides, model="qwen3_8b").training.parts)["weights"]

    tied = "model.architecture.tied=true"
    assert weights() - weights(tied) == pytest.approx(embedding)
    assert weights("model.layout.pipeline=2") == weights("model.layout.pipeline=2", tied)


def test_the_layouts_that_slime_s_scripts_use_fit() -> None:
    one = ["launch.nodes=1", "model.layout.context=1", "model.max_context_tokens=20480"]
    assert memory_of(*one).faults == ()
    assert memory_of("launch.nodes=2", model="glm4_7_flash").faults == ()
    split = ["launch.nodes=16", "trainer.rollout_nodes=8"]
    assert memory_of(*split, model="qwen3_235b_a22b").faults == ()


def test_355_billion_parameters_do_not_fit_one_node() -> None:
    small = ["launch.nodes=1", "model.layout.pipeline=1", "model.layout.context=1"]
    small += ["model.layout.expert=8", "model.layout.engine_gpus=8", "model.layout.engine_expert=8"]
    small += ["model.max_context_tokens=8192", "model.layout.engine_data=1"]
    with pytest.raises(ConfigError) as caught:
        plan_job(a_config(*small, model="glm4_7_355b_a32b"))
    assert any("in training" in fault for fault in caught.value.faults)
    assert any("engine a cache of 0 tokens" in fault for fault in caught.value.faults)
    plan = plan_job(a_config(*small, "launch.ignore_memory=true", model="glm4_7_355b_a32b"))
    assert plan.memory.faults
    assert not plan.memory.training.fits


def test_the_optimizer_is_on_the_gpus_or_in_main_memory() -> None:
    offloaded, kept = memory_of(), memory_of("trainer.optimizer_offload=false")
    assert dict(offloaded.training.parts)["optimizer"] == 0
    # Twelve bytes for each of 30.5 billion parameters over 64 ranks.
    assert dict(kept.training.parts)["optimizer"] == pytest.approx(
        30.5e9 * 12 / 64 / 2**30, rel=0.05
    )
    assert kept.host_gib == 0
    assert offloaded.host_gib == pytest.approx(30.5e9 * 12 / 8 / 2**30, rel=0.05)


def test_the_weights_of_all_ranks_add_up_to_the_model() -> None:
    layout = ["model.layout.tensor=8", "model.layout.expert=64", "model.layout.context=1"]
    parts = dict(memory_of(*layout, "model.max_context_tokens=20480").training.parts)
    # Routed experts over 64 ranks, the rest over 8.
    routed = 48 * 128 * 3 * 2048 * 768
    assert parts["weights"] == pytest.approx(
        2 * (routed / 64 + (30.5e9 - routed) / 8) / 2**30, rel=0.02
    )


def test_a_model_whose_weights_do_not_fit_is_to_be_divided_and_not_its_samples_shortened() -> None:
    whole = ("model.layout.expert=1", "model.layout.tensor=1")
    (fault, *_) = memory_of(*whole, model="qwen3_30b_a3b").faults
    assert fault.startswith("model.layout.expert=1 and model.layout.pipeline=1 divide the model")
    assert "for weights and gradients" in fault
    assert "max_context_tokens" not in fault
    (fault, *_) = memory_of("model.layout.tensor=1", model="qwen3_32b").faults
    assert fault.startswith("model.layout.tensor=1 and model.layout.pipeline=1 divide the model")


def test_an_engine_that_leaves_no_memory_to_the_trainer_is_refused() -> None:
    (fault,) = memory_of("model.layout.engine_memory=0.95").faults
    assert fault.startswith("model.layout.engine_memory=0.95 leaves too little")


@settings(max_examples=25)
@given(model=st.sampled_from(MODELS), less=st.integers(1, 40_000), more=st.integers(1, 40_000))
def test_more_tokens_need_more_memory_and_the_longest_sample_is_the_limit(
    model: str, less: int, more: int
) -> None:
    job = make_cluster_job(composed(model))
    found = plan_topology(job)
    less_total = estimate_training(job, found, less).total
    assert less_total < estimate_training(job, found, less + more).total
    edge = estimate_memory(job, found).segment_tokens // found.context
    assert estimate_training(job, found, edge).fits
    assert not estimate_training(job, found, edge + 1).fits


@functools.cache
def composed(model: str) -> Config:
    return a_config(model=model)


@pytest.mark.parametrize(
    ("launch", "override", "asked"),
    [
        ("slurm", "launch.mem=1800G", ("launch.mem", 1800.0)),
        ("slurm", "launch.mem='1048576'", ("launch.mem", 1024.0)),
        ("slurm", "launch.mem='0'", None),
        ("slurm", "launch.mem=null", None),
        ("kubernetes", "launch.pod.resources={memory:2Ti}", (POD_MEMORY, 2048.0)),
        ("kubernetes", "launch.pod.resources={memory:1073741824}", (POD_MEMORY, 1.0)),
        ("kubernetes", "launch.pod.resources={cpu:8}", None),
        ("ssh", "launch.nodes=8", None),
    ],
)
def test_the_memory_that_a_job_asks_of_each_node_is_read(
    launch: str, override: str, asked: tuple[str, float] | None
) -> None:
    assert find_node_memory(a_config(override, launch=launch).launch) == asked


def test_a_node_too_small_for_the_optimizer_is_refused() -> None:
    job = ("launch.mem=400G", "sampling.max_new_tokens=8192")
    with pytest.raises(ConfigError) as caught:
        plan_job(a_config(*job, model="glm4_7_355b_a32b"))
    assert "launch.mem is 400 GiB of main memory per node" in "".join(caught.value.faults)
    plan = plan_job(a_config("launch.mem=1800G", model="glm4_7_355b_a32b"))
    out = StringIO()
    Console(file=out, width=110).print(render_job(plan))
    assert "for the optimizer, of 1,800 (launch.mem)" in out.getvalue()
