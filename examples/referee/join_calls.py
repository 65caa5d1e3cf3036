"""Samples of recorded calls, for gateways that record calls and leave it to others to join them."""

import math


def join_calls(calls):
    """Return samples of prompts, outputs and logprobs (or None): a call is added to the sample that
    its prompt begins with, as gateways that record calls join them.
    """
    samples = []
    for prompt, output, logprobs in calls:
        values = [math.nan] * len(output) if logprobs is None else list(logprobs)
        found = next((s for s in samples if s["tokens"] == list(prompt)[: len(s["tokens"])]), None)
        if found is None:
            samples.append(found := {"tokens": [], "mask": [], "logprobs": []})
        more = list(prompt)[len(found["tokens"]) :]
        found["tokens"] += [*more, *output]
        found["mask"] += [0] * len(more) + [1] * len(output)
        found["logprobs"] += [0.0] * len(more) + values
    for sample in samples:
        if any(map(math.isnan, sample["logprobs"])):
            sample["logprobs"] = None
    return samples
