"""What a run is made of: the resolved configuration, checked.

Frozen pydantic models, ``extra="forbid"``; a section that a YAML group chooses carries ``kind``.
Defaults live in the YAML files, not here, so that ``agentrl show`` tells the whole truth; a default
here marks a key that may be absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    model_validator,
)


class Section(BaseModel):
    """One section of the configuration."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


def _base_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest:
        raise ValueError("must be a base URL such as http://127.0.0.1:30000")
    return url.rstrip("/")


def _top_k(value: int) -> int:
    if value == 0 or value < -1:
        raise ValueError("must be -1 (the whole vocabulary) or at least 1")
    return value


class Run(Section):
    """How much is done, and where it is kept."""

    dir: Path | None
    """Run directory; null picks ``runs/<date>-<time>-<scenario>`` below the current directory."""
    steps: Annotated[int, Field(ge=0)]
    """Training steps; 0 only evaluates."""
    tasks_per_step: PositiveInt
    """Groups (tasks) per step."""
    rollouts_per_task: PositiveInt
    """Rollouts per group (GRPO's group size)."""
    eval_tasks: Annotated[int, Field(ge=0)]
    """Held-out tasks per evaluation; 0 switches evaluation off."""
    eval_every: Annotated[int, Field(ge=0)]
    """Evaluate every so many steps besides before the first and after the last; 0: only those two.
    """
    keep_checkpoints: PositiveInt
    """Newest checkpoints kept (each step writes one)."""


class LinearScenario(Section):
    """One agent, one conversation."""

    kind: Literal["linear"]


class SubagentScenario(Section):
    """The main agent may not read: it sends an investigator, a thread of its own."""

    kind: Literal["subagent"]


class CompactScenario(Section):
    """A history that outgrows its window is replaced by the policy's own summary."""

    kind: Literal["compact"]
    window_tokens: PositiveInt
    """Prompt and answer of a turn together; more of them, and the history is summed up."""


class MixedScenario(Section):
    """Investigators and summaries."""

    kind: Literal["mixed"]
    window_tokens: PositiveInt
    """Prompt and answer of a turn together; more of them, and the history is summed up."""


ScenarioKind = Literal["linear", "subagent", "compact", "mixed"]
Scenario = Annotated[
    LinearScenario | SubagentScenario | CompactScenario | MixedScenario,
    Field(discriminator="kind"),
]


class TinyModel(Section):
    """A Qwen3-MoE of about half a million parameters, made on this machine and cached."""

    kind: Literal["tiny"]
    path: Path | None
    """Directory of the starting weights (safetensors + config.json); null: made by the bootstrap.
    """
    tokenizer: Path | None
    """Directory of the tokenizer (tokenizer.json); null: made by the bootstrap."""
    renderer: str
    """Renderer family of the `renderers` library."""
    max_context_tokens: PositiveInt
    """Longest prompt + completion, in tokens."""
    cache_dir: Path | None
    """Where bootstrapped models are cached; null: the user's cache directory."""
    warmup_steps: PositiveInt
    """Supervised steps of the bootstrap."""


class LocalModel(Section):
    """Any model directory on disk, for an engine that is already running."""

    kind: Literal["local"]
    path: Path | None
    """Directory of the starting weights; only a trainer needs it."""
    tokenizer: Path
    """Directory of the tokenizer (tokenizer.json)."""
    renderer: str
    """Renderer family of the `renderers` library."""
    max_context_tokens: PositiveInt
    """Longest prompt + completion, in tokens."""


Model = Annotated[TinyModel | LocalModel, Field(discriminator="kind")]


class Sampling(Section):
    """How the policy samples, in training and evaluation."""

    temperature: Annotated[float, Field(gt=0, le=10)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Annotated[int, AfterValidator(_top_k)]
    """-1: the whole vocabulary."""
    max_new_tokens: PositiveInt
    """Per turn; a client's smaller ``max_tokens`` wins."""
    eval_temperature: Annotated[float, Field(ge=0, le=10)]
    """0: greedy."""


class EmbeddedEngine(Section):
    """agentrl's own engine: SGLang's HTTP API on CPU, a process of this run."""

    kind: Literal["embedded"]
    host: str
    port: Annotated[int, Field(ge=0, le=65535)]
    """0: any free port."""
    max_running_requests: PositiveInt
    """Sequences decoded together."""
    cache_tokens: PositiveInt
    """Tokens the KV cache holds."""
    threads: Annotated[int, Field(ge=0)]
    """Torch threads; 0: one per core."""


class SglangEngine(Section):
    """An SGLang server that somebody else started."""

    kind: Literal["sglang"]
    url: Annotated[str, AfterValidator(_base_url)]
    """Base URL, e.g. http://127.0.0.1:30000."""


Engine = Annotated[EmbeddedEngine | SglangEngine, Field(discriminator="kind")]


class Gateway(Section):
    """The HTTP service that speaks the agents' dialects and records turns."""

    host: str
    port: Annotated[int, Field(ge=0, le=65535)]
    """0: any free port."""
    ping_s: PositiveFloat
    """Seconds between SSE pings while the engine works."""


class LocalSandbox(Section):
    """Namespaces on this machine."""

    kind: Literal["local"]
    isolation: Literal["auto", "bubblewrap", "unshare", "none"]
    """auto: the strongest that works here."""
    memory_mb: PositiveInt
    """Address space per process (RLIMIT_AS)."""
    processes: PositiveInt
    """Processes per sandbox (RLIMIT_NPROC)."""
    file_mb: PositiveInt
    """Largest file (RLIMIT_FSIZE)."""
    cpu_s: PositiveInt
    """CPU seconds per process (RLIMIT_CPU)."""


class NativeHarness(Section):
    """agentrl's own small agent program."""

    kind: Literal["native"]
    max_turns: PositiveInt
    """Model calls before the agent gives up."""
    max_tokens: PositiveInt
    """``max_tokens`` it asks for in each turn."""


class BugfixTask(Section):
    """Generated git repositories, each with one bug and real tests."""

    kind: Literal["bugfix"]
    train_tasks: PositiveInt
    """Tasks in the training split."""
    held_out_tasks: PositiveInt
    """Tasks in the held-out split; shares no repository with the training split."""


class TestsReward(Section):
    """Reward from the graded tests, with small shaping."""

    kind: Literal["tests"]
    solved: float
    unsolved: float
    turn_penalty: Annotated[float, Field(ge=0)]
    """Taken off per turn."""
    malformed_penalty: Annotated[float, Field(ge=0)]
    """Taken off once if the rollout contains a malformed tool call."""


RewardShare = Literal["copy", "uniform", "token_share", "final_only", "root_only"]


class SegmentsFanout(Section):
    """Every segment of a rollout becomes a sample."""

    kind: Literal["segments"]
    reward: RewardShare
    """What each of the K kept segments gets of the rollout's advantage A: ``copy`` A; ``uniform``
    A / K; ``token_share`` A · n / Σn, n being its sampled tokens; ``final_only`` A on the final
    segment, 0 on the others; ``root_only`` A on the main thread's, 0 on sub-agents'.
    """
    max_segment_tokens: PositiveInt | None
    """A longer segment is dropped whole; null: no cap."""
    max_segments: PositiveInt | None
    """Of more, the final one and the first others are kept; null: no cap."""
    train_compaction: bool
    """Train the summaries that replaced a history."""
    train_subagents: bool
    """Train what sub-agents sampled: their wipes and summaries too."""
    train_side: bool
    """Train titles, topics and other requests aside."""


class CollapseFanout(Section):
    """Only a rollout's final segment becomes a sample."""

    kind: Literal["collapse"]
    max_segment_tokens: PositiveInt | None
    """A longer segment is dropped whole; null: no cap."""


Fanout = Annotated[SegmentsFanout | CollapseFanout, Field(discriminator="kind")]


class Deadlines(Section):
    """Seconds per phase; each starts when its phase starts, so that queueing eats no budget."""

    boot_s: PositiveFloat
    harness_s: PositiveFloat
    turn_s: PositiveFloat
    grade_s: PositiveFloat
    teardown_s: PositiveFloat
    guard_s: PositiveFloat
    """One attempt as a whole: what hangs outside every phase ends here."""
    drain_s: PositiveFloat
    """What generations in flight get to finish before new weights; then they are aborted."""


class Limits(Section):
    """How hard services are leant on."""

    sandbox_starts_per_s: PositiveFloat | None
    """Sandboxes made per second; null: no limit."""
    engine_calls_per_s: PositiveFloat | None
    """Model calls begun per second; null: no limit."""
    engine_attempts: PositiveInt
    """Tries per model call, with full jitter between them, before the agent sees an error."""
    adaptive: bool
    """Lower the rollouts in flight when the engine or the sandboxes push back (429, 503, a queue),
    and raise them again slowly.
    """


class Rollout(Section):
    """How rollouts are run."""

    concurrency: PositiveInt
    """Rollouts in flight."""
    attempts: PositiveInt
    """Tries per rollout before its infrastructure failure counts."""
    breaker: PositiveInt
    """Failures of one class in a row that pause the run (exit code 1, or 4 if a service is gone).
    """
    spare_groups: Annotated[int, Field(ge=0)]
    """At most so many further tasks per step stand in for groups that cannot be trained."""
    replace_flat: bool
    """Replace groups whose rewards are all equal too (DAPO's dynamic sampling, arXiv 2503.14476).
    """
    limits: Limits
    deadlines: Deadlines


_Beta = Annotated[float, Field(ge=0, lt=1)]


class LocalTrainer(Section):
    """GRPO in plain torch in the driver's process."""

    kind: Literal["local"]
    device: Literal["auto", "cpu", "cuda"]
    learning_rate: PositiveFloat
    betas: tuple[_Beta, _Beta]
    weight_decay: Annotated[float, Field(ge=0)]
    clip_low: PositiveFloat
    clip_high: PositiveFloat
    grad_clip: PositiveFloat
    minibatches: PositiveInt
    """Optimizer updates per step (the step's rollouts are split into so many)."""
    epochs: PositiveInt
    """Passes over the step's rollouts."""
    tokens_per_microbatch: PositiveInt
    """Padded tokens in one forward; a prompt that its rows share counts once."""
    normalize_std: bool
    """Divide advantages by the group's standard deviation (GRPO); false: Dr. GRPO."""
    min_group: Annotated[int, Field(ge=2)]
    """Fewest valid rollouts for a baseline; a smaller group is dropped and counted."""
    train_unfinished: bool
    """Train rollouts that ran out of turns, tokens or time; false: they only enter the baseline."""
    threads: Annotated[int, Field(ge=0)]
    """Torch threads; 0: one per core."""


class LocalLaunch(Section):
    """One process tree on the machine where it is started."""

    kind: Literal["local"]


class Observe(Section):
    """What is shown and kept besides the store."""

    dashboard: Literal["auto", "on", "off"]
    """auto: only when stderr is a terminal."""
    tensorboard: bool


class Config(Section):
    """One run, whole."""

    seed: Annotated[int, Field(ge=0)]
    run: Run
    scenario: Scenario
    model: Model
    sampling: Sampling
    engine: Engine
    gateway: Gateway
    sandbox: LocalSandbox
    harness: NativeHarness
    task: BugfixTask
    reward: TestsReward
    fanout: Fanout
    rollout: Rollout
    trainer: LocalTrainer
    launch: LocalLaunch
    observe: Observe

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
    context = c.model.max_context_tokens
    group = c.run.rollouts_per_task
    yield (
        c.run.eval_tasks > c.task.held_out_tasks,
        f"run.eval_tasks={c.run.eval_tasks} is more than task.held_out_tasks="
        f"{c.task.held_out_tasks}: raise task.held_out_tasks or lower run.eval_tasks",
    )
    yield (
        c.run.steps > 0 and c.run.tasks_per_step > c.task.train_tasks,
        f"run.tasks_per_step={c.run.tasks_per_step} is more than task.train_tasks="
        f"{c.task.train_tasks}: raise task.train_tasks or lower run.tasks_per_step",
    )
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
    limits = c.rollout.deadlines
    needed = limits.boot_s + limits.harness_s + limits.grade_s + limits.teardown_s
    yield (
        limits.guard_s < needed,
        f"rollout.deadlines.guard_s={limits.guard_s:g} is less than boot_s + harness_s + grade_s + "
        f"teardown_s = {needed:g}: an attempt within its deadlines would be cut; raise "
        "rollout.deadlines.guard_s",
    )
    if isinstance(c.engine, EmbeddedEngine):
        yield (
            c.engine.cache_tokens < context,
            f"engine.cache_tokens={c.engine.cache_tokens} is less than model.max_context_tokens="
            f"{context}: one long rollout would not fit; raise engine.cache_tokens",
        )
        yield (
            isinstance(c.model, LocalModel) and c.model.path is None,
            "model.path=null leaves engine=embedded without weights: set model.path, or use an "
            "engine that has them (engine=sglang)",
        )
