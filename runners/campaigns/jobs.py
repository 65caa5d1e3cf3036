"""Turn the arguments of a command into jobs, one per run.

All jobs of a sweep are composed and checked before the first one starts.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.compose import changed_keys, compose, from_json
from conf.errors import AgentrlError, ConfigError, ExitCode
from conf.grammar import expand_sweeps, swept_keys
from conf.resume import resume_config
from conf.schema import Config
from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.kubernetes import KubernetesLaunchConfig
from runners.campaigns.run_weights import use_run_weights
from runners.observe.live import TASK_CHECK

CONFIG_FILE = "config.json"
MOVABLE = tuple(
    f"launch.{name}"
    for name in (
        *("account", "dashboard_port", "env", "free_disk_gb", "head", "hosts_file", "image"),
        *("interface", "join_s", "megatron_dir", "partition", "python", "ray_port", "secret"),
        *("secrets", "slime_dir", "time_limit"),
        *("constraint", "container.", "cpus_per_node", "exclusive", "mem", "modules", "qos"),
        *("pod.", "reservation", "sbatch", "login."),
    )
)
"""Keys about a job's nodes, which may change when a job on a cluster is continued."""
_LABEL_LENGTH = 100
"""Characters of a label in a directory's name; file systems allow 255 bytes."""


class JobError(AgentrlError):
    """A job cannot be started or continued: its files or its directory do not allow it."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class Job:
    """One run to start or to continue."""

    config: Config
    run_dir: Path
    label: str
    """The overrides that distinguish it from the other jobs of a sweep; empty for a single job."""
    resume: bool = False
    rewind: bool = False
    """Repeat the steps of a resumed campaign whose checkpoints are lost."""
    replayed: Path | None = None
    """Directory of the run whose schedule it repeats."""

    def changes(self) -> dict[str, Any]:
        """Return the keys whose values differ from the defaults, with their values."""
        return changed_keys(self.config.model_dump(mode="json"))

    def write_config(self) -> None:
        """Write the resolved configuration to the run directory, as ``--config`` accepts it.

        A run that is not resumed keeps the file that it has. Raises JobError.
        """
        from conf.compose import to_json
        from runners.system.processes import atomic_file

        file = self.run_dir / CONFIG_FILE
        try:
            self.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.resume or not file.exists():
                with atomic_file(file) as partial:
                    partial.write_text(to_json(self.config), "utf-8")
        except OSError as error:
            raise JobError(
                f"{file} cannot be written ({error.strerror}): make the directory writable, free "
                "some space, or choose another run.dir"
            ) from error


def new_jobs(overrides: list[str], config_file: Path | None = None, *, kind: str = "") -> list[Job]:
    """Return one job per combination of the sweeps; raises ConfigError with the faults of all.

    ``kind`` is part of the directory's name; empty for a campaign.
    """
    text = _read_config(config_file) if config_file is not None else None
    runs = expand_sweeps(overrides)
    faults = [] if kind else _find_eval_keys(overrides)
    configs: list[Config] = []
    for lines in runs:
        try:
            if text is None:
                configs.append(use_run_weights(compose(lines)))
            else:
                composed = from_json(text, source=str(config_file), overrides=lines)
                configs.append(use_run_weights(composed))
        except ConfigError as error:
            faults += error.faults
    if not kind:
        faults += _find_unmeasured_keys(overrides, configs)
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))
    if not kind and any(isinstance(config.launch, ClusterLaunchConfig) for config in configs):
        return [_cluster_job(configs)]
    if len(runs) == 1:
        return [
            Job(configs[0], configs[0].run.dir or _fresh_dir(kind or configs[0].scenario.kind), "")
        ]
    swept = swept_keys(overrides)
    labels = [_label(lines, swept) for lines in runs]
    own_dirs = "run.dir" in swept
    parent = configs[0].run.dir or _fresh_dir(f"{kind}-sweep".removeprefix("-"))
    return [
        Job(
            config,
            config.run.dir
            if own_dirs and config.run.dir
            else parent / f"{number:03}-{_to_file_name(label)}",
            label,
        )
        for number, (config, label) in enumerate(zip(configs, labels, strict=True))
    ]


def replaying_job(run_dir: Path, overrides: list[str]) -> Job:
    """Return a job that repeats the asynchronous campaign in ``run_dir`` in a directory of its own.

    Only keys that do not alter its result may differ. Raises ConfigError, JobError or StoreError.
    """
    from runners.records.store import RunStore

    with RunStore.open(run_dir, read_only=True) as store:
        stored = store.config()
        if not store.schedule():
            raise JobError(
                f"{run_dir} has no schedule to replay: a run of run.overlap=none is repeated by "
                f"`agentrl run --config {run_dir / CONFIG_FILE}`"
            )
    if not any(line.startswith("run.dir=") for line in overrides):
        overrides = [*overrides, f"run.dir={_fresh_dir('replay')}"]
    config = resume_config(stored, overrides, also=("run.dir",))
    assert config.run.dir is not None
    return Job(config, config.run.dir, "", replayed=run_dir.absolute())


def _find_eval_keys(overrides: list[str]) -> list[str]:
    """Return the fault of every key of ``agentrl eval``, which a campaign does not read."""
    return [
        f"{key} is of `agentrl eval` alone: leave it out; a campaign evaluates run.eval_tasks "
        "tasks, run.eval_attempts times each"
        for key in _given_keys(overrides)
        if key == "eval" or key.startswith("eval.")
    ]


def _find_unmeasured_keys(overrides: list[str], configs: list[Config]) -> list[str]:
    """Return the fault of a key of evaluations in campaigns that have none; ``agentrl eval``, of
    which they are too, evaluates whatever ``run.eval_tasks`` is.
    """
    key = "sampling.eval_temperature"
    if key not in _given_keys(overrides) or not configs or any(c.run.eval_tasks for c in configs):
        return []
    return [
        f"{key} does nothing with run.eval_tasks=0: leave it out, or set run.eval_tasks above 0"
    ]


def _given_keys(overrides: list[str]) -> list[str]:
    return [line.lstrip("+~").partition("=")[0] for line in overrides]


def new_job(overrides: list[str], *, kind: str) -> Job:
    """Return the job of ``overrides`` (no sweeps); ``kind`` is part of its directory's name."""
    config = use_run_weights(compose(overrides))
    return Job(config, config.run.dir or _fresh_dir(kind), "")


def resumed_job(
    run_dir: Path, overrides: list[str], *, benchmark: str | None = None, rewind: bool = False
) -> Job:
    """Return the job that continues the run in ``run_dir``: an evaluation of ``benchmark``, a
    check of tasks (``TASK_CHECK``), or a campaign.

    Raises ConfigError, JobError or StoreError.
    """
    from runners.campaigns.resumption import check_resumable
    from runners.records.store import RunStore
    from runners.services.driver import check_datasets

    if benchmark is None and (on_cluster := cluster_config(run_dir)) is not None:
        stored = on_cluster.model_dump(mode="json")
        config = resume_config(stored, overrides, also=MOVABLE)
        return Job(config, run_dir.absolute(), "", resume=True)
    with RunStore.open(run_dir, read_only=True) as store:
        stored, info = store.config(), store.state().info
    if info.get("gateway"):
        raise JobError(f"{run_dir} holds the sessions of a gateway, which cannot be continued")
    measured = info.get("benchmark")
    if measured != benchmark:
        what, command = {
            None: ("a campaign", "run"),
            TASK_CHECK: ("a check of tasks", "tasks check"),
        }.get(measured, (f"an evaluation of {measured}", f"eval {measured}"))
        raise JobError(
            f"{run_dir} holds {what}: continue it with `agentrl {command} --resume {run_dir}`"
        )
    config = resume_config(stored, overrides)
    with RunStore.open(run_dir, read_only=True) as store:
        check_datasets(store, config)
        store.verify_arrays() if benchmark else check_resumable(store, rewind=rewind)
    return Job(config, run_dir, "", resume=True, rewind=rewind)


def cluster_config(run_dir: Path) -> Config | None:
    """Return the configuration in ``run_dir`` if it holds a job on a cluster; raises ConfigError.

    It is read from a file because the job's store may be open on another machine, or not exist yet.
    """
    file = run_dir / CONFIG_FILE
    try:
        text = file.read_text("utf-8")
        kind = json.loads(text)["launch"]["kind"]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # A local run has its configuration in its store.
    return None if kind == "local" else from_json(text, source=str(file))


def _cluster_job(configs: list[Config]) -> Job:
    """Return the job on a cluster; its run directory is the one that all nodes see."""
    config = configs[0]
    if len(configs) > 1:
        raise ConfigError(
            f"a sweep needs launch=local, and launch={config.launch.kind} starts jobs on a "
            "cluster: start each combination with a launch.name of its own"
        )
    assert isinstance(config.launch, ClusterLaunchConfig)
    shared = Path(config.launch.shared_dir) / config.launch.name
    if isinstance(config.launch, KubernetesLaunchConfig) and not config.launch.shared_dir.is_dir():
        # The claim is mounted in the pods only; here is a directory for the files of the follower.
        return Job(config, config.run.dir or Path("runs") / config.launch.name, "")
    if config.run.dir not in (None, shared):
        raise ConfigError(
            f"run.dir={config.run.dir}, but the nodes see a job with launch="
            f"{config.launch.kind} in {shared} only (launch.shared_dir/launch.name): leave "
            "run.dir out"
        )
    return Job(config, shared, "")


def _read_config(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"--config {file} cannot be read: {error}") from error


def _fresh_dir(name: str) -> Path:
    """Return ``runs/<date>-<time>-<name>``, numbered if a run was started in the same second."""
    stem = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    path, number = stem, 1
    while path.exists():
        number += 1
        path = stem.with_name(f"{stem.name}-{number}")
    return path


def _label(lines: list[str], swept: list[str]) -> str:
    return " ".join(line for line in lines if line.partition("=")[0].lstrip("+") in swept)


def _to_file_name(label: str) -> str:
    return re.sub(r"[^\w.=+-]+", "_", label)[:_LABEL_LENGTH]
