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
    Field,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from conf.cluster import (
    ClusterLaunch,
    KubernetesLaunch,
    RayLaunch,
    SlimeTrainer,
    SlurmLaunch,
    SshLaunch,
)
from conf.fault_table import What, Where, illegal
from conf.models import MoeModel
from conf.section import Section

CHAT_TEMPLATE = "chat_template"
"""``model.renderer`` for a family that the `renderers` library does not know."""


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
    """Renderer family of the `renderers` library; ``chat_template``: the model's own template, with
    SGLang's parsers, and without exact continuation.
    """
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
    """Renderer family of the `renderers` library; ``chat_template``: the model's own template, with
    SGLang's parsers, and without exact continuation.
    """
    max_context_tokens: PositiveInt
    """Longest prompt + completion, in tokens."""


Model = Annotated[TinyModel | LocalModel | MoeModel, Field(discriminator="kind")]


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
    weights: Literal["float32", "bfloat16", "int8"]
    """Precision that the engine keeps its weights in: a lower one makes it another engine than the
    trainer, as servers are.
    """
    router_noise: Annotated[float, Field(ge=0, lt=1)]
    """Noise on its routers, relative to the standard deviation of their weights."""


class SglangEngine(Section):
    """SGLang servers that somebody else started."""

    kind: Literal["sglang"]
    url: Annotated[str, AfterValidator(_base_url)]
    """Base URL of the server, e.g. http://127.0.0.1:30000; of the router in front of ``workers``;
    or, without a router, of any of them.
    """
    workers: list[Annotated[str, AfterValidator(_base_url)]]
    """Base URLs of the servers, if there are several: a session stays at one of them. Behind a
    router they are needed too: it knows neither ``/abort_request`` nor ``/v1/loads``.
    """
    tool_call_parser: str | None
    """SGLang's parser of tool calls, for ``model.renderer=chat_template``."""
    reasoning_parser: str | None
    """SGLang's parser of reasoning, for ``model.renderer=chat_template``."""


class SglangLaunchEngine(Section):
    """An SGLang server that this run starts and ends: ``python -m sglang.launch_server``."""

    kind: Literal["sglang_launch"]
    host: str
    port: Annotated[int, Field(ge=0, le=65535)]
    """0: any free port."""
    start_s: PositiveFloat
    """Until it generates: weights are loaded and graphs captured meanwhile."""
    tensor_parallel: PositiveInt
    """GPUs over which each layer is split (``--tp-size``)."""
    memory_fraction: Annotated[float, Field(gt=0, lt=1)]
    """Share of a GPU's memory for weights and KV cache (``--mem-fraction-static``)."""
    tool_call_parser: str | None
    """SGLang's parser of tool calls, for ``model.renderer=chat_template``."""
    reasoning_parser: str | None
    """SGLang's parser of reasoning, for ``model.renderer=chat_template``."""
    arguments: list[str]
    """Further arguments of ``sglang.launch_server``, as on its command line."""


Engine = Annotated[EmbeddedEngine | SglangEngine | SglangLaunchEngine, Field(discriminator="kind")]


class Gateway(Section):
    """The HTTP service that speaks the agents' dialects and records turns."""

    host: str
    port: Annotated[int, Field(ge=0, le=65535)]
    """0: any free port."""
    public_url: Annotated[str, AfterValidator(_base_url)] | None
    """URL by which sandboxes elsewhere reach it: a public address, a tunnel's; null: only this
    machine's do.
    """
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


class E2bSandbox(Section):
    """Virtual machines of E2B's cloud, or of a service that speaks its API."""

    kind: Literal["e2b"]
    template: str
    """E2B template of tasks that name no image. Its own CPU and memory are the sandbox's."""
    image_key: str | None
    """Metadata key by which a service that makes sandboxes of images picks one, e.g.
    ``example.com/image``; null: a task's image is the name of a template, as at E2B.
    """
    size: str | None
    """Metadata ``size``, under the image key's prefix, for such a service; null: not sent."""
    lifetime_s: PositiveInt
    """E2B ends a sandbox so long after its last use."""
    boots: PositiveInt
    """Sandboxes that start at once."""
    attempts: PositiveInt
    """Tries per call, with full jitter between them."""
    api_url: Annotated[str, AfterValidator(_base_url)] | None
    """Control plane; null: E2B's."""
    sandbox_url: Annotated[str, AfterValidator(_base_url)] | None
    """One URL for all sandboxes; null: each has its own below E2B's domain."""


class DockerSandbox(Section):
    """Containers of a docker engine."""

    kind: Literal["docker"]
    image: str
    """Image of tasks that name none."""
    network: str
    """Docker network of agents' sandboxes; graders' have none. On one made with ``--internal`` they
    reach the gateway, at its address on that network, but not the internet.
    """
    memory_mb: PositiveInt
    """Memory per sandbox."""
    processes: PositiveInt
    """Processes per sandbox."""
    cpus: PositiveFloat
    """CPUs per sandbox."""


Sandbox = Annotated[LocalSandbox | E2bSandbox | DockerSandbox, Field(discriminator="kind")]


class NativeHarness(Section):
    """agentrl's own small agent program."""

    kind: Literal["native"]
    max_turns: PositiveInt
    """Model calls before the agent gives up."""
    max_tokens: PositiveInt
    """``max_tokens`` it asks for in each turn."""
    memory_mb: PositiveInt
    """``sandbox.memory_mb`` unless that is given."""
    cpu_s: PositiveInt
    """``sandbox.cpu_s`` unless that is given."""


class ClaudeCodeHarness(Section):
    """Claude Code, the unmodified npm package."""

    kind: Literal["claude_code"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    """The one version that is run."""
    binary: Path | None
    """The program, or an npm tarball that holds it; null: what ``agentrl check`` installed."""
    max_turns: PositiveInt
    """Model calls of the main agent before it gives up."""
    max_tokens: PositiveInt
    """``max_tokens`` it asks for in each turn."""
    memory_mb: PositiveInt
    """Address space that it needs: ``sandbox.memory_mb`` unless more is given."""
    cpu_s: PositiveInt
    """``sandbox.cpu_s`` unless that is given."""


class CodexHarness(Section):
    """Codex, the unmodified npm package."""

    kind: Literal["codex"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    """The one version that is run."""
    binary: Path | None
    """The program, or an npm tarball that holds it; null: what ``agentrl check`` installed."""
    memory_mb: PositiveInt
    """Address space that it needs: ``sandbox.memory_mb`` unless more is given."""
    cpu_s: PositiveInt
    """``sandbox.cpu_s`` unless that is given."""


class MiniSweAgentHarness(Section):
    """mini-swe-agent, the unmodified PyPI package."""

    kind: Literal["mini_swe_agent"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    """The one version that is run."""
    directory: Path | None
    """Directory that ``pip install --target`` made, for the Python inside the sandbox; null: what
    ``agentrl check`` installed.
    """
    max_turns: PositiveInt
    """Model calls before it gives up."""
    max_tokens: PositiveInt
    """``max_tokens`` it asks for in each turn."""
    command_s: PositiveInt
    """Seconds that one of its shell commands may take."""
    memory_mb: PositiveInt
    """``sandbox.memory_mb`` unless that is given."""
    cpu_s: PositiveInt
    """``sandbox.cpu_s`` unless that is given."""


Harness = Annotated[
    NativeHarness | ClaudeCodeHarness | CodexHarness | MiniSweAgentHarness,
    Field(discriminator="kind"),
]

PROMPT_TOKENS = {"claude_code": 7000, "codex": 6000, "mini_swe_agent": 1000}
"""About what a program's system prompt and tools are, before any work."""


class BugfixTask(Section):
    """Generated git repositories, each with one bug and real tests."""

    kind: Literal["bugfix"]
    train_tasks: PositiveInt
    """Tasks in the training split."""
    held_out_tasks: PositiveInt
    """Tasks in the held-out split; shares no repository with the training split."""


class SwebenchTask(Section):
    """SWE-bench's instances, to measure on: none is for training."""

    kind: Literal["swebench"]
    path: str | None
    """JSONL, JSON or Parquet file, or a dataset's name on the hub (``NAME`` or ``NAME:SPLIT``);
    null: a small set that agentrl makes itself.
    """
    repositories: Path | None
    """Directory with clones (``owner/name``, ``owner__name.git`` or ``….bundle``) for rows that do
    not say where their repository is.
    """
    grader: Literal["auto", "official", "own"]
    """``official``: the package ``swebench`` reads the log; ``own``: our plugin in pytest; auto:
    official if the package is installed.
    """
    flaky_reruns: Annotated[int, Field(ge=0)]
    """Grade again when only pass-to-pass tests fail; one good run decides."""


class JsonlTask(Section):
    """Tasks in a file, in any of the row schemas, to train on."""

    kind: Literal["jsonl"]
    path: str
    """JSONL, JSON or Parquet file, or a dataset's name on the hub (``NAME`` or ``NAME:SPLIT``)."""
    repositories: Path | None
    """Directory with clones (``owner/name``, ``owner__name.git`` or ``….bundle``) for rows that do
    not say where their repository is.
    """
    held_out_tasks: Annotated[int, Field(ge=0)]
    """The file's last so many tasks are held out."""
    grader: Literal["auto", "official", "own"]
    """Of SWE-bench's rows. ``official``: the package ``swebench`` reads the log; ``own``: our
    plugin in pytest; auto: official if the package is installed.
    """
    flaky_reruns: Annotated[int, Field(ge=0)]
    """Grade again when only pass-to-pass tests fail; one good run decides."""


Task = Annotated[BugfixTask | SwebenchTask | JsonlTask, Field(discriminator="kind")]


class TestsReward(Section):
    """Reward from the graded tests, with small shaping."""

    kind: Literal["tests"]
    solved: float
    unsolved: float
    partial: bool
    """Without being solved, the passed share of the fail-to-pass tests counts between ``unsolved``
    and ``solved``, if every pass-to-pass test passes.
    """
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
    patch_s: PositiveFloat
    """Taking the agent's change out of the sandbox."""
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


class RoutingOff(Section):
    """Inference and training each choose their own experts."""

    kind: Literal["off"]


class RoutingRecompute(Section):
    """R2: the experts that training chooses before a step's first update stay for all of them."""

    kind: Literal["recompute"]


class RoutingRollout(Section):
    """R3: training uses the experts that inference chose (Ma et al. 2025, arXiv 2510.11370)."""

    kind: Literal["rollout"]
    on_fault: Literal["stop", "mask"]
    """A sample whose routing cannot be true stops the run, or is left out of the loss and counted.
    """
    shadow_every: Annotated[int, Field(ge=0)]
    """Every so many steps one forward more, without replay: what it is worth; 0: never."""
    alarm_disagreement: Annotated[float, Field(gt=0, le=1)]
    """Share of a layer's choices that training would not have made, from which on they are another
    token's or another layer's.
    """


RoutingReplay = Annotated[
    RoutingOff | RoutingRecompute | RoutingRollout, Field(discriminator="kind")
]


class Correction(Section):
    """What is done about rollouts whose logprobs training does not reproduce."""

    truncate: Literal["none", "token", "sequence"]
    """Truncated importance sampling (TIS): weigh each token by train / rollout probability, its own
    or its sequence's, at most ``cap``.
    """
    cap: PositiveFloat
    reject_outside: tuple[PositiveFloat, PositiveFloat] | None
    """Leave out a sequence whose geometric mean of the tokens' ratios lies outside; null: none."""


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
    correction: Correction


Trainer = Annotated[LocalTrainer | SlimeTrainer, Field(discriminator="kind")]


class LocalLaunch(Section):
    """One process tree on the machine where it is started."""

    kind: Literal["local"]


Launch = Annotated[
    LocalLaunch | SshLaunch | SlurmLaunch | RayLaunch | KubernetesLaunch,
    Field(discriminator="kind"),
]


class FaultWhen(Section):
    """Which crossings of a boundary a rule hits; all that is given must hold."""

    probability: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of each crossing; drawn by a hash, so that neither timing nor order decides."""
    k: PositiveInt | None = None
    """Only the k-th crossing of this boundary in an attempt."""
    attempts: PositiveInt | None = None
    """Only the first so many attempts of a rollout."""
    rollouts: str = "*"
    """Only rollouts whose id matches this glob, e.g. ``train-000002-*``."""


class FaultRule(Section):
    """One kind of fault; ``conf/fault_table.py`` says what can happen where."""

    where: Where
    when: FaultWhen = FaultWhen()
    what: What
    seconds: float | None = None
    """How long a ``delay`` is, how far a ``clock_jump`` goes, and when ``death`` comes."""
    status: int | None = None
    """HTTP status of a ``status``."""

    @model_validator(mode="after")
    def _can_happen(self) -> FaultRule:
        fault = illegal(self.where, self.what, self.seconds, self.status)
        if fault is not None:
            raise ValueError(fault)
        return self


class PlannedFaults(Section):
    """A fault plan of ours. Of the rules that fit a crossing, the first happens."""

    kind: Literal["none", "flaky_sandbox", "flaky_engine", "slow", "chaos"]
    seed: Annotated[int, Field(ge=0)]
    """Decides, with the rollout's id, which crossings are hit."""
    rules: tuple[FaultRule, ...]


class FileFaults(Section):
    """A fault plan of the user's own file, which is read once: the run keeps its rules."""

    kind: Literal["file"]
    path: Path
    """YAML file with ``seed`` and ``rules``."""
    seed: Annotated[int, Field(ge=0)] | None
    """null: the file's, or 0."""
    rules: tuple[FaultRule, ...] | None
    """null: the file's."""


Faults = Annotated[PlannedFaults | FileFaults, Field(discriminator="kind")]


class Eval(Section):
    """What ``agentrl eval`` measures of its benchmark."""

    tasks: PositiveInt | None
    """At most so many; null: all."""
    offset: Annotated[int, Field(ge=0)]
    """So many are passed over first."""
    ids: str
    """Only tasks whose id matches this glob."""
    attempts_per_task: PositiveInt
    """Rollouts per task (n); pass@1 to pass@n are estimated."""


class Observe(Section):
    """What is shown and kept besides the store."""

    dashboard: Literal["auto", "on", "off"]
    """auto: only when stderr is a terminal."""
    tensorboard: bool
    watchdog_s: Annotated[float, Field(ge=0)]
    """An event loop (driver, gateway, engine) that has not run for so long is described in a file;
    0: off.
    """
    stuck_s: Annotated[float, Field(ge=0)]
    """An attempt without progress (stage, turn) for so long is described in a file; 0: off. It is
    not ended: deadlines do that.
    """


class Config(Section):
    """One run, whole."""

    seed: Annotated[int, Field(ge=0)]
    run: Run
    scenario: Scenario
    model: Model
    sampling: Sampling
    engine: Engine
    gateway: Gateway
    sandbox: Sandbox
    harness: Harness
    task: Task
    reward: TestsReward
    fanout: Fanout
    routing_replay: RoutingReplay
    rollout: Rollout
    trainer: Trainer
    launch: Launch
    faults: Faults
    eval: Eval
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
        c.model.renderer == CHAT_TEMPLATE
        and (isinstance(c.engine, EmbeddedEngine) or c.engine.tool_call_parser is None),
        f"model.renderer={CHAT_TEMPLATE} needs SGLang to read the replies: set engine=sglang and "
        "engine.tool_call_parser",
    )
    if not isinstance(c.task, SwebenchTask):
        yield (
            c.run.eval_tasks > c.task.held_out_tasks,
            f"run.eval_tasks={c.run.eval_tasks} is more than task.held_out_tasks="
            f"{c.task.held_out_tasks}: raise task.held_out_tasks or lower run.eval_tasks",
        )
    if isinstance(c.task, BugfixTask):
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
    needed = limits.boot_s + limits.harness_s + limits.patch_s + limits.grade_s + limits.teardown_s
    yield (
        limits.guard_s < needed,
        f"rollout.deadlines.guard_s={limits.guard_s:g} is less than boot_s + harness_s + patch_s + "
        f"grade_s + teardown_s = {needed:g}: an attempt within its deadlines would be cut; raise "
        "rollout.deadlines.guard_s",
    )
    tool = next((i for i, rule in enumerate(c.faults.rules or ()) if rule.where == "tool"), None)
    yield (
        tool is not None and not isinstance(c.harness, NativeHarness),
        f"faults.rules[{tool}] needs tools that agentrl can reach into, which harness="
        f"{c.harness.kind} has not: choose harness=native, or drop where=tool",
    )
    yield from _sandbox_rules(c)
    yield from _harness_rules(c)
    yield from _cluster_rules(c)
    if isinstance(c.engine, EmbeddedEngine) and not isinstance(c.trainer, SlimeTrainer):
        yield (
            c.engine.cache_tokens < context and not isinstance(c.model, MoeModel),
            f"engine.cache_tokens={c.engine.cache_tokens} is less than model.max_context_tokens="
            f"{context}: one long rollout would not fit; raise engine.cache_tokens",
        )
        yield (
            not isinstance(c.model, TinyModel) and c.model.path is None,
            "model.path=null leaves engine=embedded without weights: set model.path, or use an "
            "engine that has them (engine=sglang)",
        )


def _cluster_rules(c: Config) -> Iterator[tuple[bool, str]]:
    remote = isinstance(c.launch, ClusterLaunch)
    yield (
        remote and not isinstance(c.trainer, SlimeTrainer),
        f"trainer={c.trainer.kind} trains on one machine, and launch={c.launch.kind} is for "
        "several: choose trainer=slime",
    )
    if not isinstance(c.trainer, SlimeTrainer):
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
        not isinstance(c.task, JsonlTask),
        f"task={c.task.kind} has no file that slime's data source could read: choose task=jsonl "
        "and set task.path as the nodes see it",
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
    if isinstance(c.sandbox, E2bSandbox):
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
    if isinstance(c.sandbox, LocalSandbox):
        yield (
            c.sandbox.memory_mb < harness.memory_mb,
            f"sandbox.memory_mb={c.sandbox.memory_mb} is less than harness.memory_mb="
            f"{harness.memory_mb}, without which harness={harness.kind} crashes: raise "
            "sandbox.memory_mb",
        )
    if isinstance(harness, MiniSweAgentHarness):
        yield (
            c.scenario.kind != "linear",
            f"scenario={c.scenario.kind} needs what harness=mini_swe_agent has not, sub-agents or "
            "summaries: set scenario=linear, or choose harness=claude_code or harness=codex",
        )
    elif isinstance(c.scenario, CompactScenario | MixedScenario):
        window, least = c.scenario.window_tokens, 2 * prompt
        yield (
            window < least,
            f"scenario.window_tokens={window} is less than {least}, and of harness={harness.kind} "
            f"the system prompt and tools alone are some {prompt}: raise scenario.window_tokens",
        )
