"""Fan-out of rollouts into samples, routing replay, and the trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, Tag

from conf.sections.plugin import BY_NAME, SELECT, ByTarget, by_name
from conf.sections.section import BaseUrl, Follows, Section, expecting

ShareName = Literal["copy", "uniform", "token_share", "final_only", "root_only"]
RewardShare = Annotated[
    Annotated[ShareName, Tag(BY_NAME)] | ByTarget, SELECT, by_name("shares", *get_args(ShareName))
]
AdvantageName = Literal[
    "grpo",
    "dr_grpo",
    "rloo",
    "max_rl",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "rejection",
    "gdpo",
]
AdvantageChoice = Annotated[
    Annotated[AdvantageName, Tag(BY_NAME)] | ByTarget,
    SELECT,
    by_name("advantages", *get_args(AdvantageName)),
]

LossName = Literal["ppo", "gspo", "cispo", "reinforce"]
Aggregation = Literal["auto", "rollout", "token", "constant", "segment"]
LossChoice = Annotated[
    Annotated[LossName, Tag(BY_NAME)] | ByTarget, SELECT, by_name("losses", *get_args(LossName))
]

TrainingPrecision = Literal["float32", "bfloat16"]

LongFinal = Literal["cut", "drop"]


class SegmentsFanoutConfig(Section):
    """Every segment of a rollout becomes a sample."""

    kind: Literal["segments"]
    reward: RewardShare = "copy"
    """Part of the rollout's advantage A for each of its K kept segments: ``copy`` A; ``uniform``
    A / K; ``token_share`` A · n / Σn, n being its sampled tokens; ``final_only`` A on the final
    segment, 0 on the others; ``root_only`` A on the main thread's, 0 on sub-agents'. Or a plug-in.
    """
    max_segment_tokens: PositiveInt | None = 96000
    """Tokens; a longer one is dropped whole, the final one as ``long_final`` says. null: no cap."""
    long_final: LongFinal = "cut"
    """Treatment of a longer final segment: ``cut`` leaves out its tail, ``drop`` all of it."""
    max_segments: PositiveInt | None = 8
    """Of more segments these are kept: the final one, the one with the most sampled tokens, and the
    first others, those that ended in an ``edit`` last; null: no cap.
    """
    train_compaction: bool = True
    """Train the summaries that replaced a conversation's history."""
    train_subagents: bool = True
    """Train the segments of sub-agents, also those that ended in a summary."""
    train_side: bool = False
    """Train side requests: titles, topics, probes."""


class CollapseFanoutConfig(Section):
    """Only a rollout's final segment becomes a sample."""

    kind: Literal["collapse"]
    max_segment_tokens: PositiveInt | None = 96000
    """Tokens; a longer segment is cut or dropped, as ``long_final`` says. null: no cap."""
    long_final: LongFinal = "cut"
    """``cut`` leaves out the tail of a longer segment, ``drop`` all of it."""


FanoutConfig = Annotated[SegmentsFanoutConfig | CollapseFanoutConfig, Field(discriminator="kind")]


class RoutingOffConfig(Section):
    """Inference and training each choose their own experts."""

    kind: Literal["off"]


class RoutingRecomputeConfig(Section):
    """R2: the experts that training chooses before a step's first update stay for all of them."""

    kind: Literal["recompute"]


class RoutingRolloutConfig(Section):
    """R3: training uses the experts that inference chose (Ma et al. 2025, arXiv 2510.11370)."""

    kind: Literal["rollout"]
    on_fault: Literal["stop", "mask"] = "stop"
    """A sample whose routing is impossible, or not its own, stops the run, or is masked in the loss
    and counted.
    """
    shadow_every: Annotated[int, Field(ge=0)] = 10
    """Steps between extra forward passes without replay, which measure its effect; 0: never."""
    alarm_disagreement: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Share of replayed choices that training itself would not make. A sample above it does as
    ``on_fault`` says; a layer above it, or most samples, stop the run: no single sample is at
    fault. Checked in every step, once the tokens suffice as evidence. Engines of bfloat16 or int8
    weights show 0.001 to 0.01; 4-bit needs more.
    """
    keep_steps: PositiveInt | None = None
    """Steps of the newest checkpoint whose routing stays on the disk, beside that of later steps;
    None: all.
    """


RoutingReplayConfig = Annotated[
    RoutingOffConfig | RoutingRecomputeConfig | RoutingRolloutConfig, Field(discriminator="kind")
]


_Bounds = Annotated[
    tuple[PositiveFloat, PositiveFloat] | None,
    expecting("two numbers above 0 such as [0.5,2.0], or null"),
]


class CorrectionConfig(Section):
    """Correction of the loss where training does not reproduce the rollout's logprobs."""

    truncate: Literal["none", "token", "sequence"] = "none"
    """Truncated importance sampling (TIS): multiply each token's loss by its ratio of training to
    rollout probability, or by its sequence's, between ``floor`` and ``cap``. ``token`` is
    decoupled PPO (arXiv 2110.00641), whose proximal policy is the trainer's before the step.
    """
    cap: PositiveFloat = 2.0
    """Largest weight of ``truncate``."""
    floor: Annotated[float, Field(ge=0)] = 0.0
    """Smallest weight of ``truncate``."""
    mask_outside: _Bounds = None
    """Leave out tokens whose own ratio lies outside [low, high]; null: none."""
    reject_outside: _Bounds = None
    """Leave out a sequence whose geometric mean of the tokens' ratios lies outside [low, high];
    null: none.
    """
    reject_negative_above: PositiveFloat | None = None
    """Leave out a sequence with a negative advantage whose mean of log(rollout / training
    probability) is above this, in nats (DeepSeek-V3.2's off-policy masking, arXiv 2512.02556);
    null: none.
    """


class KlConfig(Section):
    """Penalty for the distance from the policy with which the run began: the Kullback-Leibler
    divergence per token, estimated from the sampled ones (Schulman 2020).
    """

    weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the penalty; 0: none, and no second policy in memory."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """With ``d = logp − logp_reference``: ``k1`` d, ``k2`` d² / 2, ``k3`` exp(−d) − 1 + d."""
    place: Literal["loss", "reward"] = "loss"
    """``loss``: added to a token's loss; ``reward``: taken off its advantage, summed from the token
    to the end of its segment, without a gradient.
    """


class DistillConfig(Section):
    """On-policy distillation: the advantage of a token by how much likelier a teacher finds it."""

    url: BaseUrl | None = None
    """SGLang server, or embedded engine, of a teacher with the policy's tokenizer
    (docs/algorithms.md); null: none.
    """
    weight: PositiveFloat = 1.0
    """Factor of log π_teacher − log π_policy in the advantage of a token."""
    alone: bool = False
    """Train without the advantages of the rewards."""
    deadline_s: PositiveFloat = 600
    """Seconds for the logprobs of one sequence, retries included; its rollout is not trained after
    that.
    """


class SupervisedConfig(Section):
    """Supervised fine-tuning on the examples of a file, before the first rollouts."""

    path: Path | None = None
    """Examples for supervised fine-tuning before the first rollouts (docs/algorithms.md): JSONL
    with ``messages`` or with ``input_ids`` and ``assistant_masks``, as ``dump-trajectories --format
    sft`` writes them; null: none.
    """
    steps: NonNegativeInt = 0
    """The run's first steps, which train on examples instead of rollouts."""
    batch: PositiveInt = 32
    """Examples per step, in one update."""


class LoraConfig(Section):
    """Low-rank adapters (LoRA, arXiv 2106.09685): they alone are trained."""

    rank: NonNegativeInt = 0
    """Rank of the adapters, which are trained instead of the weights (``pip install
    'agentrl-campaigns[lora]'``); 0: none, all weights are trained.
    """
    alpha: PositiveInt = 32
    """The product of an adapter's two matrices is multiplied by alpha / rank."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
    )
    """Linear layers that get an adapter, by the last part of their name. The experts of a mixture
    and their MLPs get none.
    """


_Beta = Annotated[float, Field(ge=0, lt=1)]
_Betas = Annotated[
    tuple[_Beta, _Beta], expecting("two numbers of at least 0 and less than 1, such as [0.9,0.95]")
]


class PolicyGradientConfig(Section):
    """Keys of the algorithm that both trainers share."""

    kind: str
    learning_rate: PositiveFloat = 1e-06
    """Learning rate of AdamW."""
    betas: _Betas = (0.9, 0.999)
    """Adam's decay rates of the first and second moment."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled from the gradient (AdamW, arXiv 1711.05101); norms and biases do not decay."""
    clip_low: PositiveFloat = 0.2
    """The probability ratio is clipped below at 1 − clip_low."""
    clip_high: PositiveFloat = 0.28
    """The probability ratio is clipped above at 1 + clip_high (DAPO's clip-higher)."""
    grad_clip: PositiveFloat = 1.0
    """Largest norm of the gradient."""
    minibatches: PositiveInt = 1
    """Optimizer updates per pass: the step's rollouts are split into this many parts."""
    advantage: AdvantageChoice = "grpo"
    """Advantages of a group's rollouts (docs/algorithms.md); or a plug-in: package.module:Name,
    FILE.py:Name, or with options ``{target: T, options: {…}}``.
    """
    normalize_std: bool = True
    """Of ``grpo``: divide by the group's standard deviation."""
    accept_reward: float | None = None
    """Of ``rejection``: least reward of a rollout that is trained; null with the others."""
    min_group: Annotated[int, Field(ge=2)] = 2
    """Least number of graded rollouts for a baseline; a smaller group is dropped and counted."""
    train_unfinished: bool = True
    """Train rollouts that ran out of turns, tokens or time; false: they only enter the baseline."""
    loss: LossChoice = "ppo"
    """Loss of a token (docs/algorithms.md); or a plug-in, as for ``advantage``. ``clip_low`` is of
    ``ppo`` and ``gspo``, ``clip_high`` also of ``cispo``.
    """
    clip_dual: Annotated[float, Field(gt=1)] | None = None
    """Of ``ppo``: with a negative advantage the loss of a token is at most so many times |A|
    (dual clip, arXiv 1912.09729); null: no limit.
    """
    aggregation: Aggregation = "auto"
    """Mean of the tokens' losses in an update: ``rollout``, each rollout alike; ``token``, each
    token (DAPO); ``segment``, each segment; ``constant``, the sum over a rollout's tokens divided
    by ``aggregation_tokens`` (Dr. GRPO). ``auto``: ``constant`` with ``advantage=dr_grpo`` and with
    ``credit=turn``, else ``rollout``.
    """
    correction: CorrectionConfig
    kl: KlConfig
    entropy_bonus: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the entropy of the distribution that a token was sampled from, in nats, which is
    taken off its loss.
    """
    warmup_steps: NonNegativeInt = 0
    """Steps in which the learning rate rises in equal parts to its full value."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up, down to ``min_learning_rate`` in the step
    after ``decay_steps``.
    """
    decay_steps: Annotated[NonNegativeInt, Follows("${run.steps}")]
    """Steps of the course of the learning rate, warm-up included."""
    min_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate at the end of ``decay``."""

    @property
    def mean_of_losses(self) -> Aggregation:
        """``aggregation``, never ``auto``."""
        if self.aggregation != "auto":
            return self.aggregation
        return "constant" if self.advantage == "dr_grpo" else "rollout"


class LocalTrainerConfig(PolicyGradientConfig):
    """GRPO in plain torch in the driver's process."""

    kind: Literal["local"]
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``auto``: cuda if torch sees a GPU."""
    devices: PositiveInt = 1
    """GPUs of this machine over which each step's samples are dealt out, with the same result, to a
    process each. 1: the driver's process trains, with ``run.overlap`` one beside it.
    """
    shard: Literal["none", "optimizer", "model"] = "none"
    """State that torch's FSDP2 divides among several devices (ZeRO, arXiv 1910.02054), with the
    same result but for rounding: ``optimizer``, gradients, AdamW's moments and float32 weights
    (stage 2), while each has all weights to compute with; ``model``, also these (stage 3).
    """
    epochs: PositiveInt = 1
    """Passes over the step's rollouts."""
    tokens_per_microbatch: Annotated[PositiveInt, Follows("${model.max_context_tokens}")]
    """Positions in one forward pass; what its samples have in common counts once."""
    aggregation_tokens: Annotated[PositiveInt, Follows("${model.max_context_tokens}")]
    """Tokens: divisor of ``constant``, the same for every rollout."""
    credit: Literal["rollout", "turn"] = "rollout"
    """Tokens' advantages: ``rollout``, all have their rollout's; ``turn``, each that of its turn:
    what was earned from there on, compared with the group's other rollouts.
    """
    precision: TrainingPrecision = "float32"
    """Numbers of the forward and backward pass (docs/one_gpu.md). ``bfloat16``: about half the
    memory of activations and several times the speed on a GPU; weights, gradients and moments that
    the optimizer changes stay float32, and so do checkpoints.
    """
    recompute: Annotated[Literal["auto"] | bool, expecting("auto, true or false")] = "auto"
    """Compute the activations of layers and logits again in the backward pass instead of keeping
    them: the same gradients with less memory and a third more computation. ``auto``: on a GPU.
    """
    threads: Annotated[int, Field(ge=0)] = 0
    """Torch threads; 0: one per core, beside rollouts (``run.overlap``) half of them."""
    lora: LoraConfig
    sft: SupervisedConfig
    distill: DistillConfig

    @property
    def mean_of_losses(self) -> Aggregation:
        """``aggregation``, never ``auto``."""
        by_turn = self.aggregation == "auto" and self.credit == "turn"
        return "constant" if by_turn else super().mean_of_losses


class SlimeTrainerConfig(PolicyGradientConfig):
    """slime on Ray: Megatron trains, SGLang samples; ``model.layout`` spreads both over GPUs."""

    kind: Literal["slime"]
    rollout_nodes: Annotated[int, Field(ge=0)] = 0
    """Nodes that only sample; 0: engines and training share all GPUs and take turns."""
    recompute: Literal["full", "selective"] = "full"
    """Activations that are recomputed in the backward pass."""
    optimizer_offload: bool = True
    """Keep the optimizer's state in the nodes' main memory."""
    logits_chunk: ClassVar[int] = 1024
    """Tokens whose logprobs are computed at once."""
    save_every: PositiveInt = 10
    """Steps between checkpoints. A job that is lost repeats the steps since the last one."""
    weight_sync: Literal["full", "delta"] = "full"
    """delta: engines on nodes of their own get the bytes that changed, by ``launch.shared_dir``."""
    weight_sync_dir: Path | None = None
    """Directory on each engine's node, not shared, that keeps a checkpoint for ``delta``."""
    export_weights: bool = True
    """Write the last checkpoint in Hugging Face's form when the job is done."""


TrainerConfig = Annotated[LocalTrainerConfig | SlimeTrainerConfig, Field(discriminator="kind")]
