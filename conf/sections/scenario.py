"""How the agent may work."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from conf.sections.section import Section


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
