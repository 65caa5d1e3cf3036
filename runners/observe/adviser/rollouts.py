"""Illnesses of rollouts: cut off, failing, with histories that nobody sums up."""

from __future__ import annotations

from collections.abc import Mapping

from runners.observe.adviser.alarm import Alarm, share
from runners.observe.adviser.history import History, count_outcomes, name_steps, total
from runners.records.outcome import OutcomeClass, OutcomeCode

_STEPS = 2
_CUT = 0.3
_LEAST = 4
"""Rollouts: fewer are accidents."""
_FAILING = 0.25
_RETRIES = 0.5
"""Repeated calls of the engine per turn."""
_MISSED = 0.05
"""Share of turns beyond the window: a summary that fails once costs a few."""

PROGRAMS_WITHOUT_EDITS = (
    *("native", "claude_code", "codex", "mini_swe_agent", "claude_agent_sdk", "qwen_code", "pi"),
    *("gemini_cli", "continue", "cline", "kilo"),
)
"""Kinds of ``harness``, and names of those that a command starts, that change no answer by
themselves in the table of docs/agents.md.
"""

_LIMITS: Mapping[str, str] = {
    OutcomeCode.BUDGET_TURNS: "harness.max_turns",
    OutcomeCode.BUDGET_TOKENS: "sampling.max_new_tokens, harness.max_tokens, or the window of a "
    "compact scenario (scenario=compact)",
    OutcomeCode.BUDGET_WALL: "rollout.deadlines.harness_s",
}
_CAUSES: Mapping[str, str] = {
    OutcomeCode.INFRA_SANDBOX_START: "lower rollout.limits.sandbox_starts_per_s or "
    "rollout.concurrency, raise rollout.deadlines.boot_s",
    OutcomeCode.INFRA_SANDBOX_LOST: "lower rollout.concurrency, raise harness.memory_mb",
    OutcomeCode.INFRA_MODEL: "lower rollout.concurrency, raise rollout.deadlines.turn_s, read the "
    "engine's log in RUN/logs",
}


def find_truncation(history: History) -> Alarm | None:
    """Find rollouts that a limit ends: the policy is judged by what it had no room to do."""
    last = history.last(_STEPS)
    ended = sum(sum(step.outcomes.values()) for step in last)
    cut = count_outcomes(last, lambda kind: kind is OutcomeClass.BUDGET, replaced=False)
    if last and cut.total() >= max(_LEAST, _CUT * ended):
        [(code, number)] = cut.most_common(1)
        return Alarm(
            "truncation",
            f"{share(cut.total(), ended)} rollouts ran out of a budget in {name_steps(last)}, "
            f"{number:,} of {code}",
            f"raise {_LIMITS.get(code, 'that limit')}",
        )
    dropped = total(last, "fanout/dropped_long") + total(last, "fanout/dropped_many")
    kept = sum((s.number("fanout/segments_mean") or 0.0) * s.graded for s in last)
    if dropped >= max(_LEAST, _CUT * (dropped + kept)):
        return Alarm(
            "truncation",
            f"{share(dropped, dropped + kept)} segments are not trained in {name_steps(last)}",
            "raise fanout.max_segment_tokens and fanout.max_segments",
        )
    return None


def find_abort_storm(history: History) -> Alarm | None:
    """Find attempts that fail in masses: time and tokens go into what is thrown away."""
    last = history.last(_STEPS)
    tried = count_outcomes(last, lambda kind: kind is not OutcomeClass.CANCELLED, replaced=True)
    failing = (OutcomeClass.INFRA, OutcomeClass.INTERNAL)
    failed = count_outcomes(last, lambda kind: kind in failing, replaced=True)
    if failed.total() >= max(_LEAST, _FAILING * tried.total()):
        [(code, number)] = failed.most_common(1)
        return Alarm(
            "abort_storm",
            f"{share(failed.total(), tried.total())} attempts failed in {name_steps(last)}, "
            f"{number:,} of {code}",
            _CAUSES.get(code, "the messages are in agentrl report, under Failures"),
        )
    turns = sum((step.number("rollout/turns_mean") or 0.0) * step.graded for step in last)
    again = total(last, "rollout/engine_retries") + total(last, "rollout/pushed_back")
    if turns and again >= _RETRIES * turns:
        return Alarm(
            "abort_storm",
            f"{again:,} calls of the engine were repeated in {name_steps(last)}, for {turns:,.0f} "
            "turns",
            _CAUSES[OutcomeCode.INFRA_MODEL],
        )
    return None


def find_edits(history: History) -> Alarm | None:
    """Find answers that came back changed: by a hook, or by a policy that reached its program."""
    last = history.last(1)
    edits, dropped = total(last, "rollout/edits"), total(last, "fanout/dropped_many")
    if edits and dropped:
        return Alarm(
            "edited_history",
            f"{dropped:,} segments are beyond fanout.max_segments in {name_steps(last)}, where the "
            f"agent program changed {edits:,} answers",
            "raise fanout.max_segments; agentrl rollouts RUN --kind edit shows what was changed",
        )
    kind = history.key("harness.kind")
    program = history.key("harness.name") if kind == "command" else kind
    if edits and program in PROGRAMS_WITHOUT_EDITS:
        return Alarm(
            "edited_history",
            f"{edits:,} answers came back changed in {name_steps(last)}, which {program} does not "
            "do by itself",
            "agentrl rollouts RUN --kind edit shows what was changed: a hook of yours does it, or "
            "the policy has reached its program (docs/security.md)",
        )
    return None


def find_no_compaction(history: History) -> Alarm | None:
    """Find histories that grow beyond the window at which they are to be summed up."""
    last = history.last(1)
    missed = total(last, "rollout/compactions_missed")
    turns = sum((step.number("rollout/turns_mean") or 0.0) * step.graded for step in last)
    if missed < max(_LEAST, _MISSED * turns):
        return None
    window = history.key("scenario.window_tokens", "unset")
    return Alarm(
        "no_compaction",
        f"{share(missed, turns)} turns of {name_steps(last)} went on beyond "
        f"scenario.window_tokens={window}",
        "the agent program ignores its window: another version of it (harness.version), or a "
        "scenario without summaries; agentrl check tries one turn",
    )
