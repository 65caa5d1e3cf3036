"""Rules of the policy gradient: what is trained is what is rewarded, by the distribution that was
sampled from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from conf.rules.rule import Rule
from conf.sections.plugin import PluginConfig
from conf.sections.run import RunConfig, SamplingConfig
from conf.sections.task import (
    RewardConfig,
    VerdictRewardConfig,
    name_penalties,
    sum_penalties,
)
from conf.sections.training import (
    FanoutConfig,
    LocalTrainerConfig,
    SegmentsFanoutConfig,
    TrainerConfig,
)


def sampling_rules(run: RunConfig, sampling: SamplingConfig) -> Iterator[Rule]:
    """Yield the rule that training samples from the whole distribution.

    A token is then sampled with ``π(t) / π(kept)``, while engines report ``π(t)``, and which tokens
    were kept is not recorded: computed again by the trainer the set would be another one, as
    logits differ by rounding, and where it lacks the token the logprob would be −∞.
    """
    for key, value, whole in (
        ("top_p", sampling.top_p, "1.0"),
        ("top_k", sampling.top_k, "-1"),
    ):
        yield (
            run.steps > 0 and float(value) != float(whole),
            f"sampling.{key}={value} cuts the distribution, and the logprobs that are trained with "
            f"are of the whole one: set sampling.{key}={whole}; agentrl eval may cut it",
        )


def credit_rules(trainer: TrainerConfig, fanout: FanoutConfig) -> Iterator[Rule]:
    """Yield the rules of credit by turn: its baseline is linear in the rewards, and nothing else
    says what a segment is worth.
    """
    if not isinstance(trainer, LocalTrainerConfig) or trainer.credit != "turn":
        return
    yield (
        trainer.advantage not in ("rloo", "dr_grpo"),
        f"trainer.credit=turn is unbiased by a linear baseline, and trainer.advantage="
        f"{_name(trainer.advantage)} is none: choose rloo or dr_grpo",
    )
    share = fanout.reward if isinstance(fanout, SegmentsFanoutConfig) else "copy"
    yield (
        share != "copy",
        f"fanout.reward={_name(share)} divides a rollout's advantage, and with trainer.credit=turn "
        "each turn has its own: choose fanout.reward=copy",
    )


def _name(choice: str | PluginConfig) -> str:
    return choice.target if isinstance(choice, PluginConfig) else choice


def rejection_rules(reward: RewardConfig, trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rule that some rollout can be accepted. What a plug-in pays is unknown."""
    accepted, rejects = trainer.accept_reward, trainer.advantage == "rejection"
    if accepted is None or not rejects or not isinstance(reward, VerdictRewardConfig):
        return
    cost = reward.turn_penalty / reward.turn_budget + reward.length_penalty / reward.token_budget
    most = reward.solved - cost  # of one turn and one token
    worst = reward.solved - sum_penalties(reward)
    yield (
        accepted > most,
        f"trainer.accept_reward={accepted:g} is more than any rollout can earn, at most {most:g}"
        + (" less what its turns cost" if cost else "")
        + f": lower it; {worst:g} accepts all that are solved",
    )


def correction_rules(trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rules that the bounds of corrections are in order."""
    wanted = trainer.correction
    yield (
        wanted.truncate != "none" and wanted.floor >= wanted.cap,
        f"trainer.correction.floor={wanted.floor:g} is not below trainer.correction.cap="
        f"{wanted.cap:g}: lower it",
    )
    for name in ("mask_outside", "reject_outside"):
        bounds = getattr(wanted, name)
        yield (
            bounds is not None and bounds[0] >= bounds[1],
            f"trainer.correction.{name}={list(bounds or ())} leaves out everything: write the "
            "lower bound first",
        )


def gdpo_rules(run: RunConfig, reward: RewardConfig, trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rule that with parts on one scale a solved task still has a higher advantage than
    any other, whatever it costs. What a plug-in pays is unknown.

    In a group of n a part lies at most √(2n) standard deviations apart, so all penalties together
    at most √(2n) times their sum. The tests lie at least 2 (solved − unsolved − partial_credit)
    apart, times their weight.
    """
    if trainer.advantage != "gdpo" or not isinstance(reward, VerdictRewardConfig):
        return
    most, named = sum_penalties(reward), name_penalties(reward)
    apart = reward.solved - reward.unsolved - reward.partial_credit
    bound = apart * math.sqrt(2 / run.rollouts_per_task)
    yield (
        run.steps > 0 and most >= bound > 0,
        f"{named} = {most:g} with trainer.advantage=gdpo, which normalises each part: in a group "
        f"of run.rollouts_per_task={run.rollouts_per_task} a solved task could have the lower "
        f"advantage; lower the penalties below {bound:.3g} together",
    )
