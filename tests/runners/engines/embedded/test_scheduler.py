"""The scheduler step by step: what it holds between two of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from runners.engines.embedded.model import Qwen3Moe
from runners.engines.embedded.request import Request, RequestSampling
from runners.engines.embedded.scheduler import PREFILL_TOKENS, Scheduler
from runners.engines.embedded.weights import load_weights


def test_a_prompt_in_prefill_takes_the_memory_of_cached_prefixes(model_dir: Path) -> None:
    limit, length = 1800, PREFILL_TOKENS + 400
    scheduler = Scheduler(
        Qwen3Moe(load_weights(model_dir), 2048), max_running_requests=4, cache_tokens=limit,
        max_context_tokens=2048, weight_version=0, tokenizer=None,
    )  # fmt: skip
    seen = []
    for seed in range(3):
        prompt = np.random.default_rng(seed).integers(0, 800, length).astype(np.int32)
        request = Request(str(seed), prompt, RequestSampling(3), None, None, 0.0)
        scheduler.waiting.append(request)
        while not request.result.done():
            scheduler.step()
            used = int(scheduler.rows.length[: scheduler.rows.used].sum())
            seen.append((used, scheduler.cache.tokens))
    assert max(used + cached for used, cached in seen) <= limit
    assert max(cached for _, cached in seen) > length, "while nothing runs, it is the cache's"
