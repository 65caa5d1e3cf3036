"""The five numbers that decide what a run can do: window, tokens per turn, turns, deadline, reward.

They are printed at the head of every run and in every plan, so that a wrong one is seen before it
costs anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from conf.schema import Config
from conf.sections.harness import PROMPT_TOKENS, CodexHarnessConfig, UserHarnessConfig
from conf.sections.scenario import compaction_window
from conf.sections.task import RewardConfig, VerdictRewardConfig


@dataclass(frozen=True, slots=True)
class KeyNumbers:
    """The deciding numbers of a configuration."""

    window: int
    """Tokens of the longest prompt and answer."""
    summary_above: int | None
    """Tokens above which a history is replaced by its summary; None: never."""
    tokens_per_turn: int
    """Most tokens sampled in one model call."""
    turns: int
    """Most model calls of an attempt."""
    deadline_s: float
    """Seconds of the agent program."""
    reward: str
    """The reward's formula."""

    def describe(self) -> dict[str, str]:
        """Return each number with its unit, for reading."""
        above = self.summary_above
        return {
            "window": f"{self.window:,} tokens" + (f", summary above {above:,}" if above else ""),
            "tokens per turn": f"{self.tokens_per_turn:,}",
            "turns": f"{self.turns:,}",
            "deadline": f"{self.deadline_s:,g} s",
            "reward": self.reward,
        }

    def line(self) -> str:
        """Return the numbers in one line."""
        return " · ".join(f"{name} {value}" for name, value in self.describe().items())


def find_key_numbers(config: Config) -> KeyNumbers:
    """Return the deciding numbers of a configuration."""
    per_turn = config.sampling.max_new_tokens
    # Codex's requests name no limit, and those of a program of the user's own are not known.
    if not isinstance(config.harness, CodexHarnessConfig | UserHarnessConfig):
        per_turn = min(per_turn, config.harness.max_tokens)
    return KeyNumbers(
        window=config.model.max_context_tokens,
        summary_above=compaction_window(config.scenario),
        tokens_per_turn=per_turn,
        turns=config.harness.max_turns,
        deadline_s=config.rollout.deadlines.harness_s,
        reward=_describe_reward(config.reward),
    )


def find_short_window(config: Config) -> str | None:
    """Return the fault of a window that does not hold the agent program's first prompt."""
    window, kind = config.model.max_context_tokens, config.harness.kind
    prompt = PROMPT_TOKENS.get(kind, 0)
    if window >= prompt:
        return None
    return (
        f"model.max_context_tokens={window} is less than the first prompt of harness={kind} (about "
        f"{prompt} tokens): no rollout could take a turn; choose a model with a longer window"
    )


def _describe_reward(reward: RewardConfig) -> str:
    if not isinstance(reward, VerdictRewardConfig):
        return reward.target
    text = f"{reward.solved:g} or {reward.unsolved:g}"
    if reward.partial_credit:
        text += f", + at most {reward.partial_credit:g} for a part"
    if reward.turn_penalty:
        text += f", − {reward.turn_penalty:g} for {reward.turn_budget:,} turns"
    if reward.length_penalty:
        text += f", − {reward.length_penalty:g} for {reward.token_budget:,} tokens"
    if reward.overlong_penalty:
        last = reward.overlong_tokens
        text += f", − {reward.overlong_penalty:g} for the last {last:,} of {reward.token_budget:,}"
    if reward.malformed_penalty:
        text += f", − {reward.malformed_penalty:g} for a malformed call"
    return text
