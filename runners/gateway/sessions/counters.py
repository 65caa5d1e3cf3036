"""The counters of a session, as ``GET /admin/sessions/{id}`` answers them.

Which of them a rollout's record keeps is in ``runners.records.session_summary``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from runners.engines.resilient import EngineCallCounters


@dataclass(slots=True)
class SessionCounters(EngineCallCounters):
    """Counted by the session; the inherited ones by the engine."""

    turns: int = 0
    branches: Counter[str] = field(default_factory=Counter)
    """Chains, by branch kind."""
    ambiguous: int = 0
    """Requests that may be a sub-agent's without naming it; they were given to the main thread."""
    sampled_tokens: int = 0
    malformed_calls: int = 0
    recovered_calls: int = 0
    """Calls whose mark-up was wrong and that were read all the same."""
    recovered_kinds: Counter[str] = field(default_factory=Counter)
    """They, by the kind of mistake."""
    retries: int = 0
    """Requests answered from an earlier or running turn."""
    aborted: int = 0
    """Generations cut off because nobody waited for them any more."""
    failed: int = 0
    """Generations that failed at the engine after all its retries."""
    parser_fallbacks: int = 0
    """Turns answered with the unparsed text, because the server's parsers did not answer."""
    refused_turns: int = 0
    """Requests for a turn beyond the session's budget of turns or history."""
    tools_changed: int = 0
    """Turns whose tools differ from those of the turn that they continue."""
    forged_controls: int = 0
    """Control tokens that content spelled (``<|im_end|>`` in a tool's result): they are plain text.
    """
    tools_added: int = 0
    """Turns that begin a chain because the prompt before does not show all of their tools."""
    compactions_missed: int = 0
    """Turns that go on with a history beyond the window at which it was to be summed up."""
    retokenization_mismatches: int = 0
    """Turns whose sampled tokens are not those that the tokenizer gives for their text, so that
    rendering the history again would replace them (token-in-token-out).
    """
    ignored: Counter[str] = field(default_factory=Counter)
    """Keys of requests that have no effect, by name: settings that the campaign decides, not the
    client, and keys that are unknown here.
    """
    unknown_keys: int = 0
    """The latter, all of them."""
    replaced_surrogates: int = 0
    """Halves of characters in requests, and bytes that are no UTF-8: U+FFFD stands for each."""
    edits: int = 0
    """Answers that the agent program changed, so that a chain forks."""
    mechanical: Counter[str] = field(default_factory=Counter)
    """Answers that came back in another form, by what was done to it (``tree/echoes.Change``)."""
    breaks: list[dict[str, Any]] = field(default_factory=list)
    """Every turn that left some of its thread's history behind: ``turn, thread, kind, reason,
    message``, and the first token that differs: ``token, before, after``.
    """
