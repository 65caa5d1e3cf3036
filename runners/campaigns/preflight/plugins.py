"""The seams at which a user's own code takes part, and the check of what is plugged in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from conf.errors import AgentrlError
from conf.keys import groups
from conf.schema import Config
from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.plugin import PluginConfig
from conf.sections.run import SamplerName
from conf.sections.task import FormatName, GraderName
from conf.sections.training import AdvantageName, LossName, ShareName
from conf.targets import find_version, plugin_names
from runners.observe.export import FORMATS, ExporterPlugin
from runners.observe.sinks import MetricsSink
from runners.rollouts.contract import Harness
from runners.rollouts.reward import Reward
from runners.sandboxes.remote import MachineProvider
from runners.system.plugins import PluginError, PluginFailedError, load_plugin
from runners.tasks.grading import Scorer
from runners.tasks.sets import DatasetReader, TaskSampler
from runners.training.advantages import AdvantageEstimator
from runners.training.contract import PolicyLoss, try_loss
from runners.training.step_samples import SharePolicy


@dataclass(frozen=True, slots=True)
class Seam:
    """A place for code of the user's own."""

    name: str
    """Group of entry points, without ``agentrl.``."""
    key: str
    """Key of the configuration that chooses it; it may be below another section too."""
    contract: type[Any]
    """The Protocol that a plug-in keeps."""
    builtin: tuple[str, ...]
    runs: str
    """Process in which its code runs."""
    trial: Callable[[Any], None] | None = None
    """Calls a plug-in once; raises PluginFailedError."""


def list_seams() -> tuple[Seam, ...]:
    """Return all seams."""
    worker = "driver, or the node that runs the rollout"
    return (
        Seam("rewards", "reward", Reward, _choices("reward"), worker),
        Seam("harnesses", "harness", Harness, _choices("harness"), f"{worker}; its program inside"),
        Seam("sandboxes", "sandbox", MachineProvider, _choices("sandbox"), worker),
        Seam("graders", "task.grader", Scorer, get_args(GraderName), f"{worker}; tests inside"),
        Seam("readers", "task.format", DatasetReader, get_args(FormatName), "driver"),
        Seam(
            "advantages", "trainer.advantage", AdvantageEstimator, get_args(AdvantageName), "driver"
        ),
        Seam("losses", "trainer.loss", PolicyLoss, get_args(LossName), "trainer", try_loss),
        Seam("samplers", "run.sampler", TaskSampler, get_args(SamplerName), "driver"),
        Seam("shares", "fanout.reward", SharePolicy, get_args(ShareName), "driver"),
        Seam("sinks", "observe.sinks", MetricsSink, (), "driver"),
        Seam("exporters", "dump-trajectories --format", ExporterPlugin, tuple(FORMATS), "dump"),
    )


def _choices(group: str) -> tuple[str, ...]:
    return tuple(name for name in groups()[group] if name != "custom")


@dataclass(frozen=True, slots=True)
class OfferedPlugin:
    """A plug-in that an installed package offers."""

    seam: str
    name: str
    target: str
    version: str | None
    """None: its code is not there."""
    shadowed: bool
    """Its name means something that is built in, or a choice of the user's own folder."""


def list_offered() -> list[OfferedPlugin]:
    """Return the plug-ins of installed packages, by their entry points; imports none."""
    return [
        OfferedPlugin(seam.name, name, target, find_version(target), name in seam.builtin)
        for seam in list_seams()
        for name, target in sorted(plugin_names(seam.name).items())
    ]


def find_plugins(config: Config) -> dict[str, tuple[PluginConfig, Seam]]:
    """Return what is plugged in, by the key that says so (``task.sets[0].format``)."""
    by_key = {seam.key: seam for seam in list_seams()}
    anywhere = ("task.format", "task.grader", "observe.sinks")
    by_name = {key.rpartition(".")[2]: by_key[key] for key in anywhere}
    return {
        key: (plugin, by_key.get(key) or by_name[re.sub(r"\[\d+\]$", "", key.rpartition(".")[2])])
        for key, plugin in _walk("", config)
    }


def _walk(prefix: str, section: BaseModel) -> Iterator[tuple[str, PluginConfig]]:
    for name, value in section:
        key = f"{prefix}{name}"
        values = enumerate(value) if isinstance(value, tuple) else ((None, value),)
        for index, each in values:
            place = key if index is None else f"{key}[{index}]"
            if isinstance(each, PluginConfig):
                yield place, each
            elif isinstance(each, BaseModel):
                yield from _walk(f"{place}.", each)


def find_plugin_errors(config: Config) -> Iterator[AgentrlError]:
    """Load what is plugged in, and yield what is wrong with it.

    What only the nodes of a cluster have is checked when the job begins there.
    """
    for key, (plugin, seam) in find_plugins(config).items():
        on_nodes = isinstance(config.launch, ClusterLaunchConfig)
        if on_nodes and find_version(plugin.target) is None:
            continue
        try:
            made = load_plugin(plugin, seam.contract, key)
            if seam.trial is not None:
                seam.trial(made)
        except AgentrlError as error:
            yield error
        except PluginFailedError as error:
            yield PluginError(str(error))
