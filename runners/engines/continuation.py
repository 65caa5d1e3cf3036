"""Continue a generation that was aborted, as one that was never cut.

The engine is asked to go on from the prompt and what was sampled, so the weights of each part
sampled its tokens on exactly their prefix, and the parts are one generation with a version per
token (as AReaL's client does, arXiv 2505.24298).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from runners.engines.contract import Generation, SamplingParams, TokenIds
from runners.records.record import UNKNOWN_VERSION, expand_spans, find_spans

ABORTED = "abort"


def close_part(part: Generation, params: SamplingParams) -> Generation:
    """Return an aborted generation as whole if nothing is left to sample: an engine may abort a
    request at the very token that would have ended it.
    """
    if len(part.output_ids) >= params.max_new_tokens:
        return replace(part, finish_reason="length")
    if len(part.output_ids) and (last := int(part.output_ids[-1])) in params.stop_token_ids:
        return replace(part, finish_reason="stop", matched=last)
    return part


def can_continue(part: Generation, prompt: TokenIds, params: SamplingParams) -> bool:
    """Return whether an aborted generation can be continued; otherwise it is sampled anew.

    It cannot if its weights are not known, if its routing is wanted and incomplete, or if it may
    end with a stop string, whose beginning the engine would not see again.
    """
    if part.weight_version == UNKNOWN_VERSION or params.stop:
        return False
    if params.routing_start is None or not len(part.output_ids):
        return True
    rows = len(prompt) + len(part.output_ids) - 1 - params.routing_start
    if part.routing is None or rows <= 0:
        return part.routing is not None and not len(part.routing)
    return len(part.routing) > 0 and len(part.routing) % rows == 0


def continue_request(
    prompt: TokenIds, params: SamplingParams, parts: Sequence[Generation]
) -> tuple[TokenIds, SamplingParams]:
    """Return the prompt, int32 [n], and the parameters of the request after ``parts``."""
    if not parts:
        return prompt, params
    whole = np.concatenate([np.asarray(prompt, np.int32), *(part.output_ids for part in parts)])
    sampled = len(whole) - len(prompt)
    start = params.routing_start
    # the last token of a part was never an input, so its routing comes with the next part
    routing_start = None if start is None else len(whole) - 1
    left = params.max_new_tokens - sampled
    return whole, replace(params, max_new_tokens=left, routing_start=routing_start)


def join_parts(parts: Sequence[Generation]) -> Generation:
    """Return the generation of which these are the parts, in order."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    versions = [
        expand_spans(part.weight_spans, part.weight_version, len(part.output_ids)) for part in parts
    ]
    routings = [part.routing for part in parts if part.routing is not None]
    return replace(
        last,
        output_ids=np.concatenate([part.output_ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        weight_spans=find_spans(np.concatenate(versions)),
        prompt_tokens=first.prompt_tokens,
        cached_tokens=first.cached_tokens,
        engine_s=sum(part.engine_s for part in parts),
        queue_s=sum(part.queue_s for part in parts),
        routing=np.concatenate(routings) if routings else None,
    )
