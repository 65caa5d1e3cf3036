"""What a run is made of: the resolved configuration, checked.

Frozen pydantic models, ``extra="forbid"``; a section that a YAML group chooses carries ``kind``.
Defaults live in the YAML files, not here, so that ``agentrl show`` tells the whole truth; a default
here marks a key that may be absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, model_validator

from conf.sections.cluster import (
    ClusterLaunchConfig,
    SlimeTrainerConfig,
)
from conf.sections.engine import (
    EmbeddedEngineConfig,
    EngineConfig,
)
from conf.sections.executor import (
    ExecutorConfig,
    RayExecutorConfig,
)
from conf.sections.faults import (
    FaultsConfig,
)
from conf.sections.harness import (
    PROMPT_TOKENS,
    HarnessConfig,
    MiniSweAgentHarnessConfig,
    NativeHarnessConfig,
)
from conf.sections.launch import (
    LaunchConfig,
)
from conf.sections.model import (
    CHAT_TEMPLATE,
    ModelConfig,
    TinyModelConfig,
)
from conf.sections.moe import (
    MoeModel,
)
from conf.sections.rollout import (
    RolloutConfig,
)
from conf.sections.run import (
    EvalConfig,
    GatewayConfig,
    ObserveConfig,
    RunConfig,
    SamplingConfig,
)
from conf.sections.sandbox import (
    E2bSandboxConfig,
    LocalSandboxConfig,
    SandboxConfig,
)
from conf.sections.scenario import (
    CompactScenarioConfig,
    MixedScenarioConfig,
    ScenarioConfig,
)
from conf.sections.section import (
    Section,
)
from conf.sections.task import (
    BugfixTaskConfig,
    JsonlTaskConfig,
    SwebenchTaskConfig,
    TaskConfig,
    TestsRewardConfig,
)
from conf.sections.training import (
    FanoutConfig,
    RoutingReplayConfig,
    TrainerConfig,
)


class Config(Section):
    """One run, whole."""

    seed: Annotated[int, Field(ge=0)]
    run: RunConfig
    scenario: ScenarioConfig
    model: ModelConfig
    sampling: SamplingConfig
    engine: EngineConfig
    gateway: GatewayConfig
    sandbox: SandboxConfig
    harness: HarnessConfig
    task: TaskConfig
    reward: TestsRewardConfig
    fanout: FanoutConfig
    routing_replay: RoutingReplayConfig
    rollout: RolloutConfig
    executor: ExecutorConfig
    trainer: TrainerConfig
    launch: LaunchConfig
    faults: FaultsConfig
    eval: EvalConfig
    observe: ObserveConfig

    @model_validator(mode="after")
    def _sections_agree(self) -> Config:
        faults = [message for broken, message in _rules(self) if broken]
        if faults:
            raise ValueError("\n".join(faults))
        return self


def _rules(c: Config) -> Iterator[tuple[bool, str]]:
    """Yield every rule between sections: whether it is broken, and the message with both keys and
    the mend.
    """
    yield from _engine_rules(c)
    yield from _step_rules(c)
    yield from _length_rules(c)
    yield from _deadline_rules(c)
    yield from _fault_rules(c)
    yield from _sandbox_rules(c)
    yield from _harness_rules(c)
    yield from _cluster_rules(c)


def _engine_rules(c: Config) -> Iterator[tuple[bool, str]]:
    yield (
        c.model.renderer == CHAT_TEMPLATE
        and (isinstance(c.engine, EmbeddedEngineConfig) or c.engine.tool_call_parser is None),
        f"model.renderer={CHAT_TEMPLATE} needs SGLang to read the replies: set engine=sglang and "
        "engine.tool_call_parser",
    )
    context = c.model.max_context_tokens
    if isinstance(c.engine, EmbeddedEngineConfig) and not isinstance(c.trainer, SlimeTrainerConfig):
        yield (
            c.engine.cache_tokens < context and not isinstance(c.model, MoeModel),
            f"engine.cache_tokens={c.engine.cache_tokens} is less than model.max_context_tokens="
            f"{context}: one long rollout would not fit; raise engine.cache_tokens",
        )
        yield (
            not isinstance(c.model, TinyModelConfig) and c.model.path is None,
            "model.path=null leaves engine=embedded without weights: set model.path, or use an "
            "engine that has them (engine=sglang)",
        )


def _step_rules(c: Config) -> Iterator[tuple[bool, str]]:
    if not isinstance(c.task, SwebenchTaskConfig):
        yield (
            c.run.eval_tasks > c.task.held_out_tasks,
            f"run.eval_tasks={c.run.eval_tasks} is more than task.held_out_tasks="
            f"{c.task.held_out_tasks}: raise task.held_out_tasks or lower run.eval_tasks",
        )
    if isinstance(c.task, BugfixTaskConfig):
        yield (
            c.run.steps > 0 and c.run.tasks_per_step > c.task.train_tasks,
            f"run.tasks_per_step={c.run.tasks_per_step} is more than task.train_tasks="
            f"{c.task.train_tasks}: raise task.train_tasks or lower run.tasks_per_step",
        )
    group = c.run.rollouts_per_task
    yield (
        c.run.steps > 0 and group < c.trainer.min_group,
        f"run.rollouts_per_task={group} is less than trainer.min_group={c.trainer.min_group}: "
        "no group could ever be trained; raise run.rollouts_per_task",
    )
    yield (
        c.run.steps > 0 and c.trainer.minibatches > c.run.tasks_per_step * group,
        f"trainer.minibatches={c.trainer.minibatches} is more than the rollouts of a step "
        f"(run.tasks_per_step × run.rollouts_per_task = {c.run.tasks_per_step * group}): "
        "lower trainer.minibatches",
    )


def _length_rules(c: Config) -> Iterator[tuple[bool, str]]:
    context = c.model.max_context_tokens
    yield (
        c.sampling.max_new_tokens >= context,
        f"sampling.max_new_tokens={c.sampling.max_new_tokens} leaves no room for a prompt in "
        f"model.max_context_tokens={context}: lower sampling.max_new_tokens",
    )
    longest = c.fanout.max_segment_tokens
    yield (
        c.run.steps > 0 and longest is not None and longest <= c.sampling.max_new_tokens,
        f"fanout.max_segment_tokens={longest} leaves no room for a prompt beside "
        f"sampling.max_new_tokens={c.sampling.max_new_tokens}: segments would be dropped for one "
        "full answer; raise fanout.max_segment_tokens",
    )


def _deadline_rules(c: Config) -> Iterator[tuple[bool, str]]:
    limits = c.rollout.deadlines
    needed = limits.boot_s + limits.harness_s + limits.patch_s + limits.grade_s + limits.teardown_s
    yield (
        limits.guard_s < needed,
        f"rollout.deadlines.guard_s={limits.guard_s:g} is less than boot_s + harness_s + patch_s + "
        f"grade_s + teardown_s = {needed:g}: an attempt within its deadlines would be cut; raise "
        "rollout.deadlines.guard_s",
    )


def _fault_rules(c: Config) -> Iterator[tuple[bool, str]]:
    tool = next((i for i, rule in enumerate(c.faults.rules or ()) if rule.where == "tool"), None)
    yield (
        tool is not None and not isinstance(c.harness, NativeHarnessConfig),
        f"faults.rules[{tool}] needs tools that agentrl can reach into, which harness="
        f"{c.harness.kind} has not: choose harness=native, or drop where=tool",
    )


_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _cluster_rules(c: Config) -> Iterator[tuple[bool, str]]:
    remote = isinstance(c.launch, ClusterLaunchConfig)
    yield (
        remote and not isinstance(c.trainer, SlimeTrainerConfig),
        f"trainer={c.trainer.kind} trains on one machine, and launch={c.launch.kind} is for "
        "several: choose trainer=slime",
    )
    if not isinstance(c.trainer, SlimeTrainerConfig):
        return
    yield (
        not isinstance(c.model, MoeModel),
        f"model={c.model.kind} is not in the table that trainer=slime takes layers and layout "
        "from: choose one with an architecture, e.g. model=qwen3_30b_a3b",
    )
    yield (
        isinstance(c.model, MoeModel) and c.model.path is None,
        "model.path=null, and trainer=slime needs the Hugging Face checkpoint: set model.path to "
        "its directory as the nodes see it",
    )
    yield (
        not remote,
        f"launch={c.launch.kind} cannot start trainer=slime, which runs on Ray: choose "
        "launch=ssh, slurm, ray or kubernetes",
    )
    yield (
        not isinstance(c.task, JsonlTaskConfig),
        f"task={c.task.kind} has no file that slime's data source could read: choose task=jsonl "
        "and set task.path as the nodes see it",
    )
    yield (
        isinstance(c.launch, ClusterLaunchConfig)
        and c.launch.nodes > 1
        and isinstance(c.executor, RayExecutorConfig)
        and c.gateway.host in _LOOPBACK,
        f"gateway.host={c.gateway.host} is reached from one node, and executor=ray runs rollouts "
        f"on {getattr(c.launch, 'nodes', 1)}: set gateway.host=0.0.0.0",
    )
    window = getattr(c.scenario, "window_tokens", None)
    yield (
        window is not None and window >= c.model.max_context_tokens,
        f"scenario.window_tokens={window} is never reached below model.max_context_tokens="
        f"{c.model.max_context_tokens}: lower scenario.window_tokens",
    )


def _sandbox_rules(c: Config) -> Iterator[tuple[bool, str]]:
    kind, url = c.sandbox.kind, c.gateway.public_url
    yield (
        kind != "local" and url is None,
        f"gateway.public_url=null, but sandbox={kind} reaches nothing on this machine by itself: "
        "set gateway.public_url to the gateway's address as sandboxes see it (with gateway.host "
        "and gateway.port), or to a tunnel's",
    )
    yield (
        url is not None and c.gateway.port == 0,
        f"gateway.public_url={url} leads to a port that gateway.port=0 leaves open: set "
        "gateway.port to the one that it leads to",
    )
    if isinstance(c.sandbox, E2bSandboxConfig):
        guard_s = c.rollout.deadlines.guard_s
        yield (
            c.sandbox.lifetime_s < guard_s,
            f"sandbox.lifetime_s={c.sandbox.lifetime_s} is less than rollout.deadlines.guard_s="
            f"{guard_s:g}: E2B would end the sandbox of a living attempt; raise sandbox.lifetime_s",
        )
        yield (
            c.sandbox.size is not None and c.sandbox.image_key is None,
            f"sandbox.size={c.sandbox.size} needs a service that makes sandboxes of images: set "
            "sandbox.image_key; at E2B the size is the template's (sandbox.template)",
        )


def _harness_rules(c: Config) -> Iterator[tuple[bool, str]]:
    harness, prompt = c.harness, PROMPT_TOKENS.get(c.harness.kind)
    if prompt is None:
        return
    if isinstance(c.sandbox, LocalSandboxConfig):
        yield (
            c.sandbox.memory_mb < harness.memory_mb,
            f"sandbox.memory_mb={c.sandbox.memory_mb} is less than harness.memory_mb="
            f"{harness.memory_mb}, without which harness={harness.kind} crashes: raise "
            "sandbox.memory_mb",
        )
    if isinstance(harness, MiniSweAgentHarnessConfig):
        yield (
            c.scenario.kind != "linear",
            f"scenario={c.scenario.kind} needs what harness=mini_swe_agent has not, sub-agents or "
            "summaries: set scenario=linear, or choose harness=claude_code or harness=codex",
        )
    elif isinstance(c.scenario, CompactScenarioConfig | MixedScenarioConfig):
        window, least = c.scenario.window_tokens, 2 * prompt
        yield (
            window < least,
            f"scenario.window_tokens={window} is less than {least}, and of harness={harness.kind} "
            f"the system prompt and tools alone are some {prompt}: raise scenario.window_tokens",
        )
