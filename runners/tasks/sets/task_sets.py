"""The tasks that a run trains on and those that it is evaluated on.

Invariant: no task is in both, by its id or by its problem (the same statement at the same commit).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import ceil
from pathlib import Path

from conf.cache import cache_root
from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.task import (
    BugfixTaskConfig,
    JsonlTaskConfig,
    MixtureTaskConfig,
    SwebenchTaskConfig,
)
from conf.task_sets import TaskSet, find_weights, list_sets
from runners.tasks import bugfix
from runners.tasks.contract import Task
from runners.tasks.section_keys import reading_section
from runners.tasks.sets.dataset_files import DatasetError
from runners.tasks.sets.dataset_report import (
    SHOWN,
    DatasetReport,
    Progress,
    find_dataset,
    load_dataset,
    raise_for_faults,
    read_dataset,
)
from runners.tasks.sets.mixture import draw_sets
from runners.tasks.sets.readiness import find_readiness
from runners.tasks.sets.splits import sort_by_rank, split_tasks


def load_tasks(config: Config) -> list[Task]:
    """Return the tasks of both splits; generated tasks are made once and cached.

    Those of a campaign's evaluation are in the order in which they are chosen. Blocks. Raises
    TaskRootError, RepositoryError, DatasetError, and ConfigError if there are too few to train on.
    """
    found = {each.key: _load_set(config, each) for each in list_sets(config)}
    generated = _generate(config) if isinstance(config.task, BugfixTaskConfig) else []
    return _assemble(config, found, generated)


def _assemble(
    config: Config, found: Mapping[str, Sequence[Task]], generated: Sequence[Task]
) -> list[Task]:
    """Return the tasks of both splits, of the sets in ``found`` (by their keys); raises what
    ``load_tasks`` does.
    """
    sets = [each for each in list_sets(config) if each.key in found]
    trained = [found[each.key] for each in sets if not each.evaluated]
    evaluated = [found[each.key] for each in sets if each.evaluated]
    tasks = _split(config, trained) if trained else list(generated)
    if evaluated:
        tasks = [task for task in tasks if task.split == "train"]
        refuse_overlap(tasks, list(chain(*evaluated)))
        weights = [each.weight for each in sets if each.evaluated]
        tasks += _order_evaluated(config, evaluated, weights)
    if trained:
        _check_enough(config, Counter(task.set_name for task in tasks if task.split == "train"))
    return tasks


def _load_set(config: Config, task_set: TaskSet) -> list[Task]:
    with reading_section(task_set.key):
        tasks = load_dataset(task_set.config, find_dataset(task_set.config))
        refuse_unready(config, tasks)
    return [replace(task, set_name=task_set.name) for task in tasks]


def _split(config: Config, sets: Sequence[Sequence[Task]]) -> list[Task]:
    """Return the tasks of the training sets, split; a benchmark's are all held out."""
    refuse_shared_ids(sets)
    tasks = list(chain(*sets))
    if isinstance(config.task, SwebenchTaskConfig):
        return [replace(task, split="held_out") for task in tasks]
    return split_tasks(config.seed, tasks, _count_held_out(config, len(tasks)))


def _order_evaluated(
    config: Config, sets: Sequence[Sequence[Task]], weights: Sequence[float]
) -> list[Task]:
    """Return the evaluated tasks in the order in which they are chosen: by rank, and from several
    sets by weight until they are used up.
    """
    refuse_shared_ids(sets)
    _check_evaluated(config, sum(map(len, sets)))
    left = [iter(sort_by_rank(config.seed, tasks)) for tasks in sets]
    ordered: list[Task] = []
    for number in draw_sets(weights):
        if len(ordered) == sum(map(len, sets)):
            break
        ordered += islice(left[number], 1)
    return [replace(task, split="held_out") for task in ordered]


def _generate(config: Config) -> list[Task]:
    family = config.task
    assert isinstance(family, BugfixTaskConfig)
    name = f"bugfix-{bugfix.VERSION}-seed{config.seed}-{family.train_tasks}-{family.held_out_tasks}"
    if family.held_out_kinds == "new":
        name += "-new"
    return bugfix.build(
        cache_root() / "tasks" / name,
        seed=config.seed,
        train=family.train_tasks,
        held_out=family.held_out_tasks,
        held_out_kinds=family.held_out_kinds,
    )


def check_sets(
    config: Config, *, make_builtin: bool = False, show: Progress = lambda text: None
) -> dict[str, DatasetReport]:
    """Read the sets that are here, and return a report on each by its place in the configuration.

    Left out are sets that only the nodes of a cluster have, and the built-in one unless it may be
    made. ``show`` is told how far it is. Raises AgentrlError for what ``load_tasks`` would refuse;
    it names every malformed row.
    """
    sets = list_sets(config)
    reports: dict[str, DatasetReport] = {}
    for each in sets:
        path = find_dataset(each.config) if make_builtin else each.config.path
        on_nodes = isinstance(config.launch, ClusterLaunchConfig)
        if path is None or (on_nodes and not Path(path).exists()):
            continue
        with reading_section(each.key):
            report = read_dataset(each.config, path, show=show)
            raise_for_faults(report)
            refuse_unready(config, report.tasks)
        named = tuple(replace(task, set_name=each.name) for task in report.tasks)
        reports[each.key] = replace(report, tasks=named, name=each.name)
    missing = {each.evaluated for each in sets if each.key not in reports}
    here = [each.key for each in sets if each.evaluated not in missing]
    _assemble(config, {key: reports[key].tasks for key in here}, [])
    return reports


def refuse_unready(config: Config, tasks: Sequence[Task]) -> None:
    """Raise DatasetError, which names every task that the configured sandboxes cannot run."""
    found = ((task.id, find_readiness(task, config.sandbox)) for task in tasks)
    lines = [f"{name}: {answer.reason}" for name, answer in found if answer.state != "ready"]
    if lines:
        raise DatasetError(
            f"{len(lines)} of {len(tasks)} tasks cannot be run with sandbox={config.sandbox.kind}:"
            f"\n{_shorten(lines)}"
        )


def refuse_overlap(train: Sequence[Task], evaluated: Sequence[Task]) -> None:
    """Raise DatasetError, which names every task that would be trained and measured."""
    by_id = {task.id: task for task in evaluated}
    by_problem = {_problem(task): task for task in evaluated}
    lines = []
    for task in train:
        if (same := by_id.get(task.id)) is not None:
            lines.append(f"{task.id}: the same id")
        elif (same := by_problem.get(_problem(task))) is not None:
            lines.append(f"{task.id}: the statement and commit of {same.id}")
    if lines:
        raise DatasetError(
            f"{len(lines)} of {len(train)} training tasks are in the evaluation set, which would "
            f"then measure what was trained: remove them from one of both\n{_shorten(lines)}"
        )


def _problem(task: Task) -> tuple[str, str]:
    """Return what makes two tasks the same, whatever their ids: commit (or image) and statement."""
    return task.base_commit or task.image or "", " ".join(task.problem_statement.split())


def _shorten(lines: list[str]) -> str:
    more = len(lines) - SHOWN
    return "\n".join([*lines[:SHOWN], *([f"… and {more} more"] if more > 0 else [])])


def refuse_shared_ids(sets: Sequence[Sequence[Task]]) -> None:
    """Raise DatasetError, which names every id that is in several sets of a mixture."""
    places: dict[str, list[str]] = defaultdict(list)
    for task in chain(*sets):
        places[task.id].append(task.set_name)
    lines = [f"{name}: in {' and '.join(found)}" for name, found in places.items() if found[1:]]
    if lines:
        raise DatasetError(
            f"{len(lines)} ids are in several sets of the mixture: rename or remove them in all "
            f"but one\n{_shorten(lines)}"
        )


def _count_held_out(config: Config, rows: int) -> int:
    """Return the number of tasks that are held out; raises DatasetError for more than there are."""
    assert isinstance(config.task, JsonlTaskConfig | MixtureTaskConfig)
    held_out = config.task.held_out_tasks
    if held_out > rows:
        places = ", ".join(
            str(each.config.path) for each in list_sets(config) if not each.evaluated
        )
        raise DatasetError(
            f"task.held_out_tasks={held_out} is more than the {rows} rows of {places}: lower it "
            "(its default is run.eval_tasks)"
        )
    return held_out


def _check_enough(config: Config, found: Mapping[str, int]) -> None:
    """Raise ConfigError if a step would need a task twice; a file's length is known only now.

    ``found``: number of training tasks by the name of their set.
    """
    weights = find_weights(config)
    wanted = config.run.tasks_per_step if config.run.steps else 0
    for name, weight in weights.items():
        number = sum(found.values()) if len(weights) == 1 else found.get(name, 0)
        share = ceil(wanted * weight / sum(weights.values()))
        if number >= share:
            continue
        fix = "lower run.tasks_per_step or task.held_out_tasks"
        if isinstance(config.task, SwebenchTaskConfig):
            fix = "it is for measuring (agentrl eval swebench); train on task=jsonl task.path=FILE"
        elif name:
            raise ConfigError(
                f"the set {name} of task=mixture has {number} tasks to train on, and its weight "
                f"asks for {share} of the {wanted} of a step: lower its weight, or {fix}"
            )
        has = f"task={config.task.kind} has {number} tasks to train on"
        raise ConfigError([f"{has}, run.tasks_per_step={wanted}: {fix}"])


def _check_evaluated(config: Config, found: int) -> None:
    """Raise ConfigError if an evaluation would have fewer tasks than it should."""
    if config.run.eval_tasks > found:
        raise ConfigError(
            f"run.eval_tasks={config.run.eval_tasks} is more than the {found} tasks of eval_task="
            f"{config.eval_task.kind}: lower it"
        )
