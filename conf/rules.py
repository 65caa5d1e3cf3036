"""Rules between sections of the configuration.

Each function takes the sections that it compares and yields every rule: whether it is broken, and a
message that names both keys and the fix. ``schema.Config`` checks all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.executor import ExecutorConfig, RayExecutorConfig
from conf.sections.faults import FaultsConfig
from conf.sections.gateway import GatewayConfig
from conf.sections.harness import (
    PROMPT_TOKENS,
    ClaudeCodeHarnessConfig,
    CodexHarnessConfig,
    HarnessConfig,
    MiniSweAgentHarnessConfig,
    NativeHarnessConfig,
)
from conf.sections.launch import LaunchConfig
from conf.sections.model import (
    ModelConfig,
)
from conf.sections.moe import MoeModel
from conf.sections.plugin import PluginConfig
from conf.sections.rollout import RolloutConfig
from conf.sections.run import ObserveConfig, RunConfig, SamplingConfig
from conf.sections.sandbox import E2bSandboxConfig, LocalSandboxConfig, SandboxConfig
from conf.sections.scenario import (
    CompactScenarioConfig,
    MixedScenarioConfig,
    ScenarioConfig,
    has_subagents,
)
from conf.sections.task import (
    BugfixTaskConfig,
    EvalTaskConfig,
    HeldOutEvalTaskConfig,
    JsonlTaskConfig,
    MixtureTaskConfig,
    RewardConfig,
    SwebenchTaskConfig,
    TaskConfig,
    VerdictRewardConfig,
    name_penalties,
    sum_penalties,
)
from conf.sections.training import (
    FanoutConfig,
    LocalTrainerConfig,
    SlimeTrainerConfig,
    TrainerConfig,
)

Rule = tuple[bool, str]
"""True if the rule is broken; the message for that case."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def step_rules(run: RunConfig, task: TaskConfig, trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rules of a step: there are enough tasks, and its groups can be trained."""
    if isinstance(task, BugfixTaskConfig):
        yield (
            run.steps > 0 and run.tasks_per_step > task.train_tasks,
            f"run.tasks_per_step={run.tasks_per_step} is more than task.train_tasks="
            f"{task.train_tasks}: raise task.train_tasks or lower run.tasks_per_step",
        )
    group = run.rollouts_per_task
    yield (
        run.steps > 0 and group < trainer.min_group,
        f"run.rollouts_per_task={group} is less than trainer.min_group={trainer.min_group}: "
        "no group could ever be trained; raise run.rollouts_per_task",
    )
    yield (
        run.steps > 0 and trainer.minibatches > run.tasks_per_step * group,
        f"trainer.minibatches={trainer.minibatches} is more than the rollouts of a step "
        f"(run.tasks_per_step × run.rollouts_per_task = {run.tasks_per_step * group}): "
        "lower trainer.minibatches",
    )


def sampling_rules(
    run: RunConfig, rollout: RolloutConfig, trainer: TrainerConfig
) -> Iterator[Rule]:
    """Yield the rules of a step's tasks: its sampler, and the groups that replace others."""
    sampler = run.sampler if isinstance(run.sampler, str) else "a plug-in"
    slime = isinstance(trainer, SlimeTrainerConfig)
    yield (
        slime and run.sampler != "epoch",
        f"run.sampler is {sampler}, and trainer=slime takes the tasks of all steps from a file "
        "that is written before the first: choose run.sampler=epoch or trainer=local",
    )
    replacing = f"rollout.replace_flat={str(rollout.replace_flat).lower()}"
    yield (
        slime and (rollout.replace_flat or rollout.oversample_groups > 0),
        f"{replacing} and rollout.oversample_groups={rollout.oversample_groups}: trainer=slime "
        "would cut off the groups that are slowest; leave them out, or choose trainer=local",
    )
    yield (
        rollout.replace_flat and trainer.advantage == "reinforce_pp",
        f"{replacing} and trainer.advantage=reinforce_pp: groups of equal rewards train there; set "
        "rollout.replace_flat=false, or choose trainer.advantage=reinforce_pp_baseline",
    )
    yield (
        rollout.replace_flat and rollout.spare_groups == 0 and not slime,
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


def reward_rules(reward: RewardConfig) -> Iterator[Rule]:
    """Yield the rules that solving a task at the highest cost beats giving up at once, and solving
    a part of it at no cost. What a plug-in pays is unknown.
    """
    if not isinstance(reward, VerdictRewardConfig):
        return
    most, named = sum_penalties(reward), name_penalties(reward)
    part = reward.unsolved + reward.partial_credit
    yield (
        reward.unsolved < reward.solved - most <= part,
        f"reward.unsolved={reward.unsolved:g} + reward.partial_credit={reward.partial_credit:g} = "
        f"{part:g} is not less than reward.solved={reward.solved:g}"
        + (f" less {named} = {most:g}" if named else "")
        + ": a part of a task could pay as much as solving it; lower reward.partial_credit",
    )
    yield (
        reward.solved - most <= reward.unsolved,
        f"reward.solved={reward.solved:g}"
        + (f" less {named} = {most:g}" if named else "")
        + f" is not more than reward.unsolved={reward.unsolved:g}: giving up at once would pay at "
        f"least as much as solving; {'lower the penalties' if named else 'raise reward.solved'}",
    )
    yield (
        reward.overlong_penalty > 0 and reward.overlong_tokens > reward.token_budget,
        f"reward.overlong_tokens={reward.overlong_tokens} is more than reward.token_budget="
        f"{reward.token_budget}: a rollout without a token would be penalised; lower it",
    )


def algorithm_rules(trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rules of advantages and losses: no key is accepted where it does nothing."""
    accepts = trainer.advantage == "rejection"
    yield (
        accepts and trainer.accept_reward is None,
        "trainer.advantage=rejection trains rollouts with at least trainer.accept_reward, which is "
        "null: set it, e.g. trainer.accept_reward=1",
    )
    yield (
        not accepts and trainer.accept_reward is not None,
        f"trainer.accept_reward={trainer.accept_reward} is of trainer.advantage=rejection alone: "
        "set it to null",
    )
    yield (
        trainer.clip_dual is not None and trainer.loss != "ppo",
        f"trainer.clip_dual={trainer.clip_dual} is of trainer.loss=ppo alone: set it to null",
    )
    yield (
        trainer.kl.weight > 0 and trainer.kl.estimator == "k1" and trainer.kl.place == "loss",
        "trainer.kl.estimator=k1 with trainer.kl.place=loss has an expected gradient of 0: choose "
        "k2 or k3, or trainer.kl.place=reward",
    )
    yield (
        trainer.min_learning_rate > trainer.learning_rate,
        f"trainer.min_learning_rate={trainer.min_learning_rate:g} is above trainer.learning_rate="
        f"{trainer.learning_rate:g}: lower it",
    )
    yield (
        trainer.decay != "constant" and 0 < trainer.decay_steps <= trainer.warmup_steps,
        f"trainer.warmup_steps={trainer.warmup_steps} leaves nothing of trainer.decay_steps="
        f"{trainer.decay_steps}: lower it",
    )


def supervised_rules(run: RunConfig, trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rules of supervised steps: they have examples, and are steps of the run."""
    if not isinstance(trainer, LocalTrainerConfig):
        return
    path, steps = trainer.sft.path, trainer.sft.steps
    yield (
        path is not None and not steps,
        f"trainer.sft.path={path} and trainer.sft.steps=0: no step would train on its examples; "
        "set trainer.sft.steps",
    )
    yield (
        path is None and steps > 0,
        f"trainer.sft.steps={steps} and trainer.sft.path=null: there are no examples; set "
        "trainer.sft.path to a file of dump-trajectories --format sft",
    )
    yield (
        steps > run.steps,
        f"trainer.sft.steps={steps} are the first of run.steps={run.steps}: raise run.steps",
    )


def teacher_rules(
    trainer: TrainerConfig, sampling: SamplingConfig, rollout: RolloutConfig
) -> Iterator[Rule]:
    """Yield the rules of a teacher: both policies are compared at one temperature, and groups
    without a signal of their rewards have one.
    """
    if not isinstance(trainer, LocalTrainerConfig) or trainer.distill.url is None:
        return
    yield (
        sampling.temperature != 1.0,
        f"sampling.temperature={sampling.temperature:g} and trainer.distill.url: a server's "
        "logprobs of given tokens are those at temperature 1; set sampling.temperature=1",
    )
    yield (
        rollout.replace_flat,
        "rollout.replace_flat=true replaces groups that trainer.distill.url could train: set it "
        "to false",
    )


def device_rules(trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rules of several devices: the loss is one that every process can compute alone, and
    what is divided among them is worth it.
    """
    if isinstance(trainer, LocalTrainerConfig):
        yield (
            trainer.shard != "none" and trainer.devices == 1,
            f"trainer.shard={trainer.shard} divides among devices, and trainer.devices=1: raise "
            "trainer.devices, or set trainer.shard=none",
        )
        yield (
            trainer.shard == "optimizer" and trainer.lora.rank > 0,
            f"trainer.shard={trainer.shard}, and trainer.lora.rank={trainer.lora.rank}: moments of "
            "adapters are small beside the weights, which every device has; set trainer.shard=none",
        )
        yield (
            trainer.shard == "model" and trainer.lora.rank > 0,
            f"trainer.shard=model, and trainer.lora.rank={trainer.lora.rank}: a base with adapters "
            "is not divided; set trainer.shard=none, or trainer.lora.rank=0",
        )
        yield (
            trainer.devices > 1 and isinstance(trainer.loss, PluginConfig),
            f"trainer.devices={trainer.devices}, and trainer.loss is a plug-in, whose failure in "
            "one process would hold up the others: set trainer.devices=1, or choose a loss by name",
        )


def sink_rules(observe: ObserveConfig, trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rule that sinks are for the driver's own training loop."""
    yield (
        bool(observe.sinks) and isinstance(trainer, SlimeTrainerConfig),
        "observe.sinks are fed by trainer=local, and trainer=slime has loggers of its own: leave "
        "them out, or read metrics.jsonl of the run",
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


def fault_rules(faults: FaultsConfig, harness: HarnessConfig) -> Iterator[Rule]:
    """Yield the rule that faults in tools need a harness whose tools agentrl runs itself."""
    tool = next((i for i, rule in enumerate(faults.rules or ()) if rule.where == "tool"), None)
    yield (
        tool is not None and not isinstance(harness, NativeHarnessConfig),
        f"faults.rules[{tool}] injects into tools that agentrl runs itself, and harness="
        f"{harness.kind} has none: choose harness=native, or drop where=tool",
    )


def slime_rules(
    trainer: TrainerConfig,
    launch: LaunchConfig,
    model: ModelConfig,
    task: TaskConfig,
    scenario: ScenarioConfig,
) -> Iterator[Rule]:
    """Yield the rules of slime: it trains on clusters, and reads certain models and tasks."""
    on_cluster = isinstance(launch, ClusterLaunchConfig)
    if not isinstance(trainer, SlimeTrainerConfig):
        yield (
            on_cluster,
            f"trainer={trainer.kind} trains on one machine, and launch={launch.kind} is for "
            "several: choose trainer=slime",
        )
        return
    yield (
        not isinstance(model, MoeModel),
        f"model={model.kind} is not in the table that trainer=slime takes layers and layout "
        "from: choose one with an architecture, e.g. model=qwen3_30b_a3b",
    )
    yield (
        isinstance(model, MoeModel) and model.path is None,
        "model.path=null, and trainer=slime needs the Hugging Face checkpoint: set model.path to "
        "its directory as the nodes see it",
    )
    yield (
        not on_cluster,
        f"launch={launch.kind} cannot start trainer=slime, which runs on Ray: choose "
        "launch=ssh, slurm, ray or kubernetes",
    )
    yield (
        not isinstance(task, JsonlTaskConfig | MixtureTaskConfig),
        f"task={task.kind} has no file that slime's data source could read: choose task=jsonl "
        "and set task.path as the nodes see it, or task=mixture",
    )
    window = getattr(scenario, "window_tokens", None)
    yield (
        window is not None and window >= model.max_context_tokens,
        f"scenario.window_tokens={window} is never reached below model.max_context_tokens="
        f"{model.max_context_tokens}: lower scenario.window_tokens",
    )


def cluster_gateway_rules(
    launch: LaunchConfig, executor: ExecutorConfig, gateway: GatewayConfig
) -> Iterator[Rule]:
    """Yield the rule that rollouts on other nodes can reach the gateway."""
    if isinstance(launch, ClusterLaunchConfig):
        yield (
            launch.nodes > 1
            and isinstance(executor, RayExecutorConfig)
            and gateway.host in _LOOPBACK,
            f"gateway.host={gateway.host} can be reached from one node only, and executor=ray runs "
            f"rollouts on {launch.nodes}: set gateway.host=0.0.0.0",
        )


def sandbox_rules(
    sandbox: SandboxConfig, gateway: GatewayConfig, rollout: RolloutConfig
) -> Iterator[Rule]:
    """Yield the rules of sandboxes: they can reach the gateway and live as long as an attempt."""
    kind, url = sandbox.kind, gateway.public_url
    yield (
        kind not in ("local", "apptainer", "custom") and url is None,
        f"gateway.public_url=null, but sandbox={kind} cannot reach this machine by itself: set "
        "gateway.public_url to the gateway's address as sandboxes see it (with gateway.host and "
        "gateway.port), or to the address of a tunnel",
    )
    yield (
        url is not None and gateway.port == 0,
        f"gateway.public_url={url} needs a fixed port, and gateway.port=0 takes any free one: set "
        "gateway.port to the port that the URL leads to",
    )
    if isinstance(sandbox, E2bSandboxConfig):
        guard_s = rollout.deadlines.guard_s
        yield (
            sandbox.lifetime_s < guard_s,
            f"sandbox.lifetime_s={sandbox.lifetime_s} is less than rollout.deadlines.guard_s="
            f"{guard_s:g}: E2B would end the sandbox of a running attempt; raise "
            "sandbox.lifetime_s",
        )
        yield (
            sandbox.size is not None and sandbox.image_key is None,
            f"sandbox.size={sandbox.size} needs a service that makes sandboxes from images: set "
            "sandbox.image_key; at E2B the template (sandbox.template) sets the size",
        )


def harness_rules(
    harness: HarnessConfig, sandbox: SandboxConfig, scenario: ScenarioConfig
) -> Iterator[Rule]:
    """Yield the rules of the agent program: enough memory and context, and no unknown scenario."""
    prompt = PROMPT_TOKENS.get(harness.kind)
    if prompt is None:
        return
    if isinstance(sandbox, LocalSandboxConfig):
        yield (
            sandbox.memory_mb < harness.memory_mb,
            f"sandbox.memory_mb={sandbox.memory_mb} is less than harness.memory_mb="
            f"{harness.memory_mb}, without which harness={harness.kind} crashes: raise "
            "sandbox.memory_mb",
        )
    yield from _extension_rules(harness, scenario)
    if isinstance(harness, MiniSweAgentHarnessConfig):
        yield (
            scenario.kind != "linear",
            f"scenario={scenario.kind} needs sub-agents or summaries, which harness=mini_swe_agent "
            "does not have: set scenario=linear, or choose harness=claude_code or harness=codex",
        )
    elif isinstance(scenario, CompactScenarioConfig | MixedScenarioConfig):
        window, least = scenario.window_tokens, 2 * prompt
        yield (
            window < least,
            f"scenario.window_tokens={window} is less than {least}: the system prompt and tools of "
            f"harness={harness.kind} alone have about {prompt}; raise scenario.window_tokens",
        )


def _extension_rules(harness: HarnessConfig, scenario: ScenarioConfig) -> Iterator[Rule]:
    """Yield the rules of what a user adds to a program: the scenario has room for it."""
    if isinstance(harness, ClaudeCodeHarnessConfig):
        yield (
            harness.tools is not None and has_subagents(scenario),
            f"harness.tools and scenario={scenario.kind}, which says itself what the main agent "
            "and its investigator have: drop harness.tools, or choose scenario=linear or compact",
        )
        taken = sorted({"dispatcher", "investigator"} & set(harness.agents))
        yield (
            bool(taken),
            f"harness.agents has {' and '.join(taken)}, a name of the scenarios with sub-agents: "
            "choose another",
        )
    elif isinstance(harness, CodexHarnessConfig):
        yield (
            bool(harness.agents) and not has_subagents(scenario),
            f"harness.agents and scenario={scenario.kind}: Codex starts sub-agents with "
            "scenario=subagent and mixed alone; choose one of them, or drop harness.agents",
        )
