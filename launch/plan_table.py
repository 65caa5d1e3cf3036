"""Render a job's plan as tables for a terminal: model, topology, memory by phase."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from conf.plan_numbers import find_key_numbers
from launch.memory import MemoryPlan, Phase, find_node_memory
from launch.parameters import total_parameters
from launch.plan import JobPlan
from launch.topology import Topology


def render_job(plan: JobPlan) -> RenderableType:
    """Return the plan as tables."""
    job, run = plan.job, plan.job.config.run
    facts = Table(title=f"job {job.launch.name}", title_justify="left", show_header=False)
    facts.add_column(style="bright_black", no_wrap=True)
    facts.add_column(overflow="fold")
    billions = total_parameters(job.architecture) / 1e9
    rows = {
        "model": f"{job.model.kind}, {billions:.1f} B parameters, from {job.model.path}",
        "launcher": job.config.launch.kind,
        "training": _training(plan.topology),
        "engines": _engines(plan.topology),
        "a step": f"{plan.topology.rollouts:,} rollouts: {run.tasks_per_step} tasks × "
        f"{run.rollouts_per_task}; at most {plan.step_tokens / 1e6:.1f} M tokens, if each "
        f"fills its context of {job.model.max_context_tokens:,}",
        **find_key_numbers(job.config).describe(),
        "longest sample": f"{plan.memory.segment_tokens:,} tokens fit in training",
        "engine's cache": f"{plan.memory.cache_tokens:,} tokens",
        "main memory": f"{plan.memory.host_gib:.0f} GiB per node for the optimizer"
        + (" and the reference policy" if plan.job.trainer.kl.weight else "")
        + _node_memory(plan),
        "secrets": ", ".join(plan.secrets) or "none",
    }
    for name, value in rows.items():
        facts.add_row(name, value)
    return Group(facts, render_memory(plan.memory))


def _node_memory(plan: JobPlan) -> str:
    asked = find_node_memory(plan.job.config.launch)
    return "" if asked is None else f", of {asked[1]:,.0f} ({asked[0]})"


def _training(t: Topology) -> str:
    stages = "+".join(map(str, t.stage_layers))
    return (
        f"{t.train_gpus} GPUs: TP {t.tensor} × PP {t.pipeline} × CP {t.context} × "
        f"DP {t.data}; experts EP {t.expert} × ETP {t.expert_tensor} × "
        f"{t.expert_data}; layers {stages}"
    )


def _engines(t: Topology) -> str:
    place = "on the same GPUs" if t.colocated else "on nodes of their own"
    return (
        f"{t.engines} on {t.rollout_gpus} GPUs, {place}: {t.engine_gpus} GPUs each, "
        f"attention TP {t.engine_tensor} × DP {t.engine_data}, EP {t.engine_expert}"
    )


def render_memory(memory: MemoryPlan) -> Table:
    """Return a row per part of each phase's memory on its fullest rank."""
    table = Table(title="GPU memory of the fullest rank, GiB", title_justify="left")
    table.add_column("phase")
    table.add_column("part")
    table.add_column("GiB", justify="right")
    for name, phase in (("training", memory.training), ("sampling", memory.sampling)):
        for part, size in phase.parts:
            if size:
                table.add_row(name, part, f"{size:.1f}")
                name = ""
        table.add_row("", _total(phase), f"{phase.total:.1f}", end_section=True)
    return table


def _total(phase: Phase) -> Text:
    style = "green" if phase.fits else "bold red"
    return Text(f"of {phase.available:g}: {'fits' if phase.fits else 'does not fit'}", style=style)
