"""The scenario: one agent, sub-agents, summarized histories, or both."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from conf.sections.section import Section


class LinearScenarioConfig(Section):
    """One agent, one conversation."""

    kind: Literal["linear"]


class SubagentScenarioConfig(Section):
    """The main agent may not read files: it sends an investigator, which is a separate thread."""

    kind: Literal["subagent"]


class CompactScenarioConfig(Section):
    """A history that outgrows its window is replaced by the policy's own summary."""

    kind: Literal["compact"]
    window_tokens: PositiveInt
    """Tokens of a turn's prompt and answer; above it the history is replaced by a summary."""


class MixedScenarioConfig(Section):
    """Investigators and summaries."""

    kind: Literal["mixed"]
    window_tokens: PositiveInt
    """Tokens of a turn's prompt and answer; above it the history is replaced by a summary."""


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
