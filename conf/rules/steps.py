"""Rules of steps and evaluations: there are tasks for them, their rollouts fit into the context and
into their deadlines.
"""

from __future__ import annotations

from collections.abc import Iterator

from conf.rules.rule import Rule
from conf.sections.model import (
    ModelConfig,
)
from conf.sections.rollout import RolloutConfig
from conf.sections.run import RunConfig, SamplingConfig
from conf.sections.task import (
    BugfixTaskConfig,
    EvalTaskConfig,
    HeldOutEvalTaskConfig,
    JsonlTaskConfig,
    MixtureTaskConfig,
    SwebenchTaskConfig,
    TaskConfig,
)
from conf.sections.training import (
    FanoutConfig,
    TrainerConfig,
)


def step_rules(run: RunConfig, task: TaskConfig, trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rules of a step: there are enough tasks, and its groups can be trained."""
    if isinstance(task, BugfixTaskConfig):
        yield (
            run.steps > 0 and run.tasks_per_step > task.train_tasks,
            f"run.tasks_per_step={run.tasks_per_step} is more than task.train_tasks="
            f"{task.train_tasks}: raise task.train_tasks or lower run.tasks_per_step",
        )
    group = run.rollouts_per_task
    lower = " or lower trainer.min_group" if group > 1 else ""  # one rollout has no comparison
    yield (
        run.steps > 0 and group < trainer.min_group,
        f"run.rollouts_per_task={group} is less than trainer.min_group={trainer.min_group}: "
        f"no group could ever be trained; raise run.rollouts_per_task{lower}",
    )
    yield (
        run.steps > 0 and trainer.minibatches > run.tasks_per_step * group,
        f"trainer.minibatches={trainer.minibatches} is more than the rollouts of a step "
        f"(run.tasks_per_step × run.rollouts_per_task = {run.tasks_per_step * group}): "
        "lower trainer.minibatches",
    )


def sampling_rules(rollout: RolloutConfig, trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rules of the groups that replace others."""
    replacing = f"rollout.replace_flat={str(rollout.replace_flat).lower()}"
    yield (
        rollout.replace_flat and trainer.advantage == "reinforce_pp",
        f"{replacing} and trainer.advantage=reinforce_pp: groups of equal rewards train there; set "
        "rollout.replace_flat=false, or choose trainer.advantage=reinforce_pp_baseline",
    )
    yield (
        rollout.replace_flat and rollout.spare_groups == 0,
        f"{replacing} and rollout.spare_groups=0: no group could replace a flat one; raise "
        "rollout.spare_groups, or set rollout.replace_flat=false",
    )
    yield (
        rollout.oversample_groups > rollout.spare_groups,
        f"rollout.oversample_groups={rollout.oversample_groups} is more than rollout.spare_groups="
        f"{rollout.spare_groups}, of which they are the first: raise rollout.spare_groups",
    )


def evaluation_rules(
    run: RunConfig, task: TaskConfig, eval_task: EvalTaskConfig, sampling: SamplingConfig
) -> Iterator[Rule]:
    """Yield the rules of evaluations: there are tasks for them, an evaluation set has a use, and
    several attempts differ.
    """
    own_set = not isinstance(eval_task, HeldOutEvalTaskConfig)
    if not own_set and not isinstance(task, SwebenchTaskConfig):
        yield (
            run.eval_tasks > task.held_out_tasks,
            f"run.eval_tasks={run.eval_tasks} is more than task.held_out_tasks="
            f"{task.held_out_tasks}: raise task.held_out_tasks or lower run.eval_tasks",
        )
    held_out = isinstance(task, JsonlTaskConfig | MixtureTaskConfig) and task.held_out_tasks
    yield (
        own_set and held_out > 0,
        f"task.held_out_tasks={held_out}, and eval_task={eval_task.kind} is measured instead: "
        "these tasks would be neither trained nor measured; drop task.held_out_tasks or eval_task",
    )
    yield (
        own_set and not run.eval_tasks,
        f"run.eval_tasks=0, and eval_task={eval_task.kind} would never be measured: set "
        "run.eval_tasks to the number of its tasks, or drop eval_task",
    )
    yield (
        run.eval_attempts > 1 and not run.eval_tasks,
        f"run.eval_attempts={run.eval_attempts} and run.eval_tasks=0: nothing is evaluated; set "
        "run.eval_tasks to the number of tasks, or drop run.eval_attempts (agentrl eval has "
        "eval.attempts_per_task)",
    )
    yield (
        run.eval_attempts > 1 and not sampling.eval_temperature,
        f"run.eval_attempts={run.eval_attempts} and sampling.eval_temperature=0: all attempts at a "
        "task would be the same; set sampling.eval_temperature above 0, or run.eval_attempts=1",
    )


def length_rules(
    run: RunConfig, model: ModelConfig, sampling: SamplingConfig, fanout: FanoutConfig
) -> Iterator[Rule]:
    """Yield the rules of lengths: a prompt fits beside the longest answer."""
    context = model.max_context_tokens
    yield (
        sampling.max_new_tokens >= context,
        f"sampling.max_new_tokens={sampling.max_new_tokens} leaves no room for a prompt in "
        f"model.max_context_tokens={context}: lower sampling.max_new_tokens",
    )
    longest = fanout.max_segment_tokens
    yield (
        run.steps > 0 and longest is not None and longest <= sampling.max_new_tokens,
        f"fanout.max_segment_tokens={longest} leaves no room for a prompt beside "
        f"sampling.max_new_tokens={sampling.max_new_tokens}: segments would be dropped for one "
        "full answer; raise fanout.max_segment_tokens",
    )


def deadline_rules(rollout: RolloutConfig) -> Iterator[Rule]:
    """Yield the rule that an attempt within the deadline of every stage is within its own."""
    limits = rollout.deadlines
    needed = limits.boot_s + limits.harness_s + limits.patch_s + limits.grade_s + limits.teardown_s
    yield (
        limits.guard_s < needed,
        f"rollout.deadlines.guard_s={limits.guard_s:g} is less than boot_s + harness_s + patch_s + "
        f"grade_s + teardown_s = {needed:g}: an attempt within its deadlines would be cut off; "
        "raise rollout.deadlines.guard_s",
    )
