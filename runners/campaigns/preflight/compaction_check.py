"""Try whether the agent program sums up its history at the scenario's window.

Old versions ignore the setting, without a word. So the program is told a usage beyond the window,
by an engine that calls a tool, and must ask for a summary.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from conf.schema import Config
from conf.sections.harness import name_program
from conf.sections.model import EndpointModelConfig
from conf.sections.scenario import compaction_window
from runners.campaigns.preflight.agent_turn import (
    AgentTurnError,
    CannedEngine,
    PolicyFiles,
    run_agent,
)
from runners.engines.contract import (
    Engine,
    Generation,
    SamplingParams,
    TextCall,
    TextReply,
    TokenIds,
)

CALL = TextCall("Probe", {}, "")
"""Of a tool that no program has: each answers it with an error, and goes on."""
CALLS = 2
"""Claude Code sums up nothing before its second turn."""
BEYOND = 1.1
"""Reported usage, in windows: Claude Code gives up at some 33,000 tokens more."""


async def check_compaction(config: Config, policy: PolicyFiles, work: Path) -> None:
    """Raise AgentTurnError if the program goes on beyond the window of its scenario.

    Files are written below ``work``. Nothing is tried of scenarios without summaries, nor with a
    model whose tokenizer is the endpoint's own.
    """
    window = compaction_window(config.scenario)
    if window is None or isinstance(config.model, EndpointModelConfig):
        return

    def make_engine(client: Engine, reply: list[int]) -> Engine:
        return OutgrowingEngine(client, reply, int(BEYOND * window))

    run = await run_agent(config, policy, work, None, make_engine)
    if any(turn.branch == "compaction" for turn in run.turns):
        return
    version = getattr(config.harness, "version", "")
    raise AgentTurnError(
        f"harness={name_program(config.harness)} {version} did not sum up its history at "
        f"scenario.window_tokens={window} ({len(run.turns)} turns, {run.result.code}): old "
        "versions ignore the window; choose another harness.version, or scenario=linear"
    )


class OutgrowingEngine(CannedEngine):
    """An ``Engine`` whose first answers call a tool and report a usage beyond the window."""

    def __init__(self, client: Engine, reply: list[int], prompt_tokens: int) -> None:
        super().__init__(client, reply)
        self._prompt_tokens = prompt_tokens
        self._calls = CALLS

    async def generate(
        self, input_ids: TokenIds, params: SamplingParams, *, rid: str
    ) -> Generation:
        """Return the call as often as it is wanted, then the canned reply."""
        generation = await super().generate(input_ids, params, rid=rid)
        if not self._calls:
            return generation
        self._calls -= 1
        called = TextReply("I look.", "", (CALL,), 1)
        return replace(generation, prompt_tokens=self._prompt_tokens, reply=called)
