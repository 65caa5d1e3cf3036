"""The scenario: one agent, sub-agents, summarized histories, or both."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from conf.sections.section import Follows, Section


class LinearScenarioConfig(Section):
    """One agent, one conversation."""

    kind: Literal["linear"]


class SubagentScenarioConfig(Section):
    """The main agent may not read files: it sends an investigator, which is a separate thread."""

    kind: Literal["subagent"]


class _SummarisingScenario(Section):
    window_tokens: Annotated[PositiveInt, Follows("${fraction:${model.max_context_tokens},5,6}")]
    """Tokens of a turn's prompt and answer; above it the agent requests a summary and continues
    from that. The default leaves a sixth of the window for the summary: 80,000 of 96,000.
    """


class CompactScenarioConfig(_SummarisingScenario):
    """A history that outgrows its window is replaced by the policy's own summary."""

    kind: Literal["compact"]


class MixedScenarioConfig(_SummarisingScenario):
    """Investigators and summaries."""

    kind: Literal["mixed"]


ScenarioKind = Literal["linear", "subagent", "compact", "mixed"]


ScenarioConfig = Annotated[
    LinearScenarioConfig | SubagentScenarioConfig | CompactScenarioConfig | MixedScenarioConfig,
    Field(discriminator="kind"),
]


def has_subagents(scenario: ScenarioConfig) -> bool:
    """Return whether the main agent sends sub-agents."""
    return isinstance(scenario, SubagentScenarioConfig | MixedScenarioConfig)


def compaction_window(scenario: ScenarioConfig) -> int | None:
    """Return the tokens beyond which a history is summarized, None if it never is."""
    if isinstance(scenario, CompactScenarioConfig | MixedScenarioConfig):
        return scenario.window_tokens
    return None
