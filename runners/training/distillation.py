"""On-policy distillation: the advantage of a sampled token by a teacher's opinion of it.

Agarwal et al. 2023 (GKD, arXiv 2306.13649); Gu et al. 2023 (MiniLLM, arXiv 2306.08543), here
without the sum over the tokens that follow.
"""

from __future__ import annotations

from torch import Tensor

from conf.sections.training import DistillConfig


def distill(
    advantages: Tensor, rollout_logprobs: Tensor, teacher_logprobs: Tensor, config: DistillConfig
) -> Tensor:
    """Return ``A_t + weight · (log π_teacher(y_t) − log π_rollout(y_t))``, float32 [n]; without
    ``A_t`` if the teacher is ``alone``.

    Its mean over tokens that the policy sampled is minus the reverse KL divergence per token, so
    the policy gradient goes down that divergence, prefix by prefix. No gradient.
    """
    opinion = config.weight * (teacher_logprobs - rollout_logprobs).detach()
    return opinion if config.alone else advantages + opinion
