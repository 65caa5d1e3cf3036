"""Rules of agent programs and their sandboxes: memory, context, addresses and lifetimes."""

from __future__ import annotations

from collections.abc import Iterator

from conf.rules.rule import Rule
from conf.sections.faults import FaultsConfig
from conf.sections.gateway import GatewayConfig
from conf.sections.harness import (
    PROMPT_TOKENS,
    ClaudeCodeHarnessConfig,
    CodexHarnessConfig,
    HarnessConfig,
    MiniSweAgentHarnessConfig,
    NativeHarnessConfig,
)
from conf.sections.rollout import RolloutConfig
from conf.sections.sandbox import E2bSandboxConfig, LocalSandboxConfig, SandboxConfig
from conf.sections.scenario import (
    CompactScenarioConfig,
    MixedScenarioConfig,
    ScenarioConfig,
    has_subagents,
)


def sandbox_rules(
    sandbox: SandboxConfig, gateway: GatewayConfig, rollout: RolloutConfig
) -> Iterator[Rule]:
    """Yield the rules of sandboxes: they can reach the gateway and live as long as an attempt."""
    kind, url = sandbox.kind, gateway.public_url
    yield (
        kind not in ("local", "apptainer", "custom") and url is None,
        f"gateway.public_url=null, but sandbox={kind} cannot reach this machine by itself: set "
        "gateway.public_url to the gateway's address as sandboxes see it (with gateway.host and "
        "gateway.port), or to the address of a tunnel",
    )
    yield (
        url is not None and gateway.port == 0,
        f"gateway.public_url={url} needs a fixed port, and gateway.port=0 takes any free one: set "
        "gateway.port to the port that the URL leads to",
    )
    yield (
        gateway.metrics_port is not None and gateway.metrics_port == gateway.port,
        f"gateway.metrics_port={gateway.metrics_port} is gateway.port, too: choose another, of "
        "which agents know nothing",
    )
    if isinstance(sandbox, E2bSandboxConfig):
        guard_s = rollout.deadlines.guard_s
        yield (
            sandbox.lifetime_s < guard_s,
            f"sandbox.lifetime_s={sandbox.lifetime_s} is less than rollout.deadlines.guard_s="
            f"{guard_s:g}: E2B would end the sandbox of a running attempt; raise "
            "sandbox.lifetime_s",
        )
        yield (
            sandbox.size is not None and sandbox.image_key is None,
            f"sandbox.size={sandbox.size} needs a service that makes sandboxes from images: set "
            "sandbox.image_key; at E2B the template (sandbox.template) sets the size",
        )


def harness_rules(
    harness: HarnessConfig, sandbox: SandboxConfig, scenario: ScenarioConfig
) -> Iterator[Rule]:
    """Yield the rules of the agent program: enough memory and context, and no unknown scenario."""
    prompt = PROMPT_TOKENS.get(harness.kind)
    if prompt is None:
        return
    if isinstance(sandbox, LocalSandboxConfig):
        yield (
            sandbox.memory_mb < harness.memory_mb,
            f"sandbox.memory_mb={sandbox.memory_mb} is less than harness.memory_mb="
            f"{harness.memory_mb}, without which harness={harness.kind} crashes: raise "
            "sandbox.memory_mb",
        )
    yield from _extension_rules(harness, scenario)
    if isinstance(harness, MiniSweAgentHarnessConfig):
        yield (
            scenario.kind != "linear",
            f"scenario={scenario.kind} needs sub-agents or summaries, which harness=mini_swe_agent "
            "does not have: set scenario=linear, or choose harness=claude_code or harness=codex",
        )
    elif isinstance(scenario, CompactScenarioConfig | MixedScenarioConfig):
        window, least = scenario.window_tokens, 2 * prompt
        yield (
            window < least,
            f"scenario.window_tokens={window} is less than {least}: the system prompt and tools of "
            f"harness={harness.kind} alone have about {prompt}; raise scenario.window_tokens",
        )


def _extension_rules(harness: HarnessConfig, scenario: ScenarioConfig) -> Iterator[Rule]:
    """Yield the rules of what a user adds to a program: the scenario has room for it."""
    if isinstance(harness, ClaudeCodeHarnessConfig):
        yield (
            harness.tools is not None and has_subagents(scenario),
            f"harness.tools and scenario={scenario.kind}, which says itself what the main agent "
            "and its investigator have: drop harness.tools, or choose scenario=linear or compact",
        )
        taken = sorted({"dispatcher", "investigator"} & set(harness.agents))
        yield (
            bool(taken),
            f"harness.agents has {' and '.join(taken)}, a name of the scenarios with sub-agents: "
            "choose another",
        )
    elif isinstance(harness, CodexHarnessConfig):
        yield (
            bool(harness.agents) and not has_subagents(scenario),
            f"harness.agents and scenario={scenario.kind}: Codex starts sub-agents with "
            "scenario=subagent and mixed alone; choose one of them, or drop harness.agents",
        )


def fault_rules(faults: FaultsConfig, harness: HarnessConfig) -> Iterator[Rule]:
    """Yield the rule that faults in tools need a harness whose tools agentrl runs itself."""
    tool = next((i for i, rule in enumerate(faults.rules or ()) if rule.where == "tool"), None)
    yield (
        tool is not None and not isinstance(harness, NativeHarnessConfig),
        f"faults.rules[{tool}] injects into tools that agentrl runs itself, and harness="
        f"{harness.kind} has none: choose harness=native, or drop where=tool",
    )
