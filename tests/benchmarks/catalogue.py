"""Every benchmark: its command, what its figures are compared with, and the limit that physics or
the work itself sets.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One command that measures."""

    name: str
    """Of its output in ``docs/performance/``."""
    command: str
    """Module of this package, and arguments."""
    measures: str
    baseline: str
    """What it is compared with in the same run."""
    limit: str
    """What cannot be beaten, or the bar."""
    minutes: float
    """On two idle cores, about."""


BENCHMARKS = (
    Benchmark(
        "growth",
        "bench_growth --plot docs/performance/growth.png",
        "costs of gateway, store, report, dump and driver over the size of the work",
        "the smallest size",
        "the exponent of work that is done once for what is new",
        12,
    ),
    Benchmark(
        "tree",
        "bench_tree",
        "training on a prefix tree, on recorded steps",
        "a row per sample",
        "tokens of the tree over those of the rows",
        15,
    ),
    Benchmark(
        "gateway",
        "bench_gateway --long",
        "a turn's CPU time in the gateway up to 66,000 tokens",
        "an adapter that renders each request whole",
        "passing the prompt on, unread",
        6,
    ),
    Benchmark(
        "gateway_at_once",
        "bench_gateway --at-once 16",
        "16 sessions of 66,000 tokens side by side: CPU time of a turn, turns per second",
        "an adapter that renders each request whole",
        "passing the prompt on, unread",
        1,
    ),
    Benchmark(
        "gateway_many",
        "bench_gateway --many 1000 --rate 40",
        "how long turns of 1,000 sessions take by the clock",
        "-",
        "p99 below 50 ms",
        3,
    ),
    Benchmark(
        "gateway_fairness",
        "bench_gateway_fairness --holds --width 30 --seconds 4",
        "how long one session's attack holds the gateway's loop",
        "no attack",
        "50 ms",
        4,
    ),
    Benchmark(
        "size",
        "bench_size",
        "what 1,024 sandboxes on 16 nodes take of gateway, driver and store",
        "128 sandboxes, of few and of many turns",
        "what a node has: the last table says when it is used up",
        4,
    ),
    Benchmark(
        "overlap",
        "bench_overlap",
        "steps per hour of asynchronous campaigns, in virtual time",
        "synchronous steps; the field's rules of staleness",
        "training alone (3.3x)",
        3,
    ),
    Benchmark(
        "asynchronous",
        "bench_asynchronous",
        "asynchronous campaigns of real processes whose tests are slow",
        "rollouts and training in turns",
        "training alone",
        8,
    ),
    Benchmark(
        "engine",
        "bench_engine --threads 1",
        "tokens per second of the embedded engine",
        "transformers.generate, one by one and as one batch",
        "the forward passes of the same work alone",
        5,
    ),
    Benchmark(
        "engine_turns",
        "bench_engine_turns",
        "continued turns by the length of their history; gaps when weights change",
        "an empty prefix cache; requests held while weights are read",
        "an ordinary step",
        1,
    ),
    Benchmark(
        "sandbox",
        "bench_sandbox",
        "a rollout without its model calls",
        "-",
        "the agent's own processes",
        3,
    ),
    Benchmark(
        "help", "bench_help", "start of the command line, a TAB", "-", "an empty Python program", 1
    ),
    Benchmark(
        "routing",
        "bench_routing",
        "mismatch of rollout and training with routing replay",
        "without replay",
        "the engine's rounding",
        6,
    ),
    Benchmark(
        "crash",
        "bench_crash --kills 20 --campaigns 4",
        "differences after kill -9 and resume",
        "an undisturbed campaign",
        "none",
        20,
    ),
    Benchmark(
        "cheating_policy",
        "bench_cheating_policy --canaries 1 --steps 30",
        "what the cheats of a policy earn that was shown to cheat",
        "no canaries",
        "none is paid",
        20,
    ),
    Benchmark(
        "canary_timing",
        "bench_canary_timing",
        "how well a clock tells which run is a canary",
        "a guess",
        "0.5",
        5,
    ),
    Benchmark(
        "trl",
        "bench_trl",
        "gradients and advantages against TRL's trainer (needs an environment of its own)",
        "TRL",
        "float32's rounding",
        5,
    ),
)
"""In the order of the page."""
