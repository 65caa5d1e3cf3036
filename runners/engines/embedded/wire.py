"""Parse SGLang's ``/generate`` bodies strictly, and build its answers.

Invariant: no key that would change the answer is ignored. A key that this engine does not implement
is accepted only with the value that means "off"; a key that SGLang does not have is refused.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runners.engines.contract import EngineError
from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.request import RequestResult, RequestSampling
from runners.engines.embedded.validation import describe_errors
from runners.records.record import IdArray, find_spans

GREEDY_BELOW = 1e-6
"""SGLang treats lower temperatures as greedy."""

_OFF: Mapping[str, tuple[Any, ...]] = {
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_new_tokens": (0,),
    "n": (1,),
    "logit_bias": ({},),
    "custom_params": ({},),
    "stop_regex": ([],),
    **dict.fromkeys(("json_schema", "regex", "ebnf", "structural_tag"), ()),
}
"""Sampling keys that are not implemented, with the values (besides null) that mean off."""

_OFF_REQUEST: Mapping[str, tuple[Any, ...]] = {
    "top_logprobs_num": (0,),
    "token_ids_logprob": ([],),
    **dict.fromkeys(
        (
            "stream", "background", "require_reasoning", "return_bytes", "return_entropy",
            "return_hidden_states", "return_indexer_topk", "return_prompt_token_ids",
            "return_text_in_logprobs",
        ),
        (False,),
    ),
    **dict.fromkeys(
        (
            "text", "input_embeds", "image_data", "video_data", "audio_data", "modalities",
            "lora_path", "custom_logit_processor", "session_params", "extra_key",
            "bootstrap_host", "bootstrap_port", "bootstrap_room",
        ),
        (),
    ),
}  # fmt: skip
"""The same for the keys beside ``sampling_params``."""

_INERT = ("spaces_between_special_tokens", "stream_interval")
_INERT_REQUEST = (
    "log_metrics", "no_logs", "priority", "routing_key", "session_id", "conversation_id",
    "custom_labels", "routed_dp_rank", "data_parallel_rank", "model",
)  # fmt: skip
"""Keys that mean nothing to a single process; a router adds some of them."""

MAX_STOP_IDS = 128
"""A request's stop ids widen an array of all rows, with which every step compares its tokens."""
MAX_INT = np.iinfo(np.int64).max
"""A row's settings are int64: a larger one would end the worker, and so every request."""

Body = TypeVar("Body", bound=BaseModel)
StopId = Annotated[int, Field(ge=0, le=MAX_INT)]


class SamplingBody(BaseModel):
    """``sampling_params``; null means the default, as in SGLang."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_new_tokens: int = Field(128, ge=0)
    temperature: float = Field(1.0, ge=0.0, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(-1, ge=-1, le=MAX_INT)
    stop: str | list[str] = Field(default_factory=list)
    stop_token_ids: list[StopId] = Field(default_factory=list, max_length=MAX_STOP_IDS)
    sampling_seed: int | None = None
    seed: int | None = None
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True


class GenerateBody(BaseModel):
    """The body of ``POST /generate``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rid: str = Field(default_factory=lambda: uuid.uuid4().hex, min_length=1)
    input_ids: list[int] = Field(min_length=1)
    sampling_params: dict[str, Any] = Field(default_factory=dict)
    return_logprob: bool = False
    logprob_start_len: int = Field(-1, ge=-1)
    return_routed_experts: bool = False
    routed_experts_start_len: int = Field(0, ge=0)


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """A checked ``/generate`` request."""

    rid: str
    prompt: IdArray
    sampling: RequestSampling
    routing_start: int | None
    return_logprob: bool
    logprob_start: int | None
    """First position of the prompt whose logprobs are returned; None: none of the prompt's are."""
    trims_stop: bool
    skips_special_tokens: bool


def parse_body(raw: bytes) -> dict[str, Any]:
    """Decode a JSON object; raises EngineError 400."""
    try:
        body = orjson.loads(raw or b"{}")
    except orjson.JSONDecodeError as error:
        raise EngineError(f"The body is not valid JSON: {error}", status=400) from error
    if not isinstance(body, dict):
        raise EngineError("The body must be a JSON object.", status=400)
    return body


def parse_generate(raw: bytes, eos_token_ids: tuple[int, ...]) -> GenerateCall:
    """Check a ``/generate`` body; raises EngineError 400 that names every wrong key."""
    errors: list[str] = []
    values = parse_body(raw)
    body = _check(GenerateBody, values, "", _OFF_REQUEST, _INERT_REQUEST, errors)
    params, given = None, values.get("sampling_params") or {}
    if isinstance(given, dict):
        params = _check(SamplingBody, given, "sampling_params.", _OFF, _INERT, errors)
    if params is not None and params.top_k == 0:
        errors.append("sampling_params.top_k: must be -1 (all) or at least 1")
    if body is not None and body.routed_experts_start_len > len(body.input_ids):
        errors.append(
            f"routed_experts_start_len: {body.routed_experts_start_len} is beyond the prompt of "
            f"{len(body.input_ids)} tokens"
        )
    if body is not None and body.logprob_start_len >= len(body.input_ids):
        errors.append(
            f"logprob_start_len: {body.logprob_start_len} is beyond the prompt of "
            f"{len(body.input_ids)} tokens"
        )
    if errors or body is None or params is None:
        raise EngineError("; ".join(errors), status=400)
    try:
        prompt = np.asarray(body.input_ids, dtype=np.int32)
    except OverflowError as error:
        raise EngineError("input_ids: a value is outside the vocabulary", status=400) from error
    return GenerateCall(
        rid=body.rid,
        prompt=prompt,
        sampling=_sampling(params, eos_token_ids),
        routing_start=body.routed_experts_start_len if body.return_routed_experts else None,
        return_logprob=body.return_logprob,
        logprob_start=(
            body.logprob_start_len if body.return_logprob and body.logprob_start_len >= 0 else None
        ),
        trims_stop=not params.no_stop_trim,
        skips_special_tokens=params.skip_special_tokens,
    )


def build_answer(call: GenerateCall, done: RequestResult, core: EngineCore) -> dict[str, Any]:
    """Return SGLang's answer; routing is base64 of little-endian int32 [rows · layers · top_k]."""
    ids = done.output_ids.tolist()
    meta: dict[str, Any] = {
        "id": call.rid,
        "finish_reason": done.finish_reason,
        "prompt_tokens": len(call.prompt),
        "completion_tokens": len(ids),
        "cached_tokens": done.cached_tokens,
        "reasoning_tokens": 0,
        "weight_version": str(done.weight_version),
        "weight_versions": _spans(done),
        "num_retractions": done.retractions,
        "e2e_latency": done.total_s,
        "queue_time": done.queue_s,
    }
    if call.return_logprob:
        meta["input_token_logprobs"] = _input_logprobs(call, done)
        meta["output_token_logprobs"] = [
            (logprob, token, None)
            for logprob, token in zip(done.logprobs.tolist(), ids, strict=True)
        ]
        meta["output_token_logprobs_length"] = len(ids)
    if done.routing is not None:
        rows = np.ascontiguousarray(done.routing, dtype="<i4")
        meta["routed_experts"] = base64.b64encode(rows.tobytes()).decode("ascii")
    return {"text": _text(call, done, core), "output_ids": ids, "meta_info": meta}


def _input_logprobs(call: GenerateCall, done: RequestResult) -> list[tuple[Any, int, None]]:
    """Return the prompt's logprobs as SGLang does: the first is null, wherever they begin."""
    if done.input_logprobs is None:
        return []
    ids = call.prompt[call.logprob_start :].tolist()
    values = [None, *done.input_logprobs[1:].tolist()]
    return [(logprob, token, None) for logprob, token in zip(values, ids, strict=True)]


def _spans(done: RequestResult) -> list[dict[str, str | int]]:
    """Return SGLang's spans of output tokens by weight version; one at least."""
    spans: list[dict[str, str | int]] = []
    start = 0
    for version, count in find_spans(done.weight_versions) or (
        (done.weight_version, len(done.output_ids)),
    ):
        spans.append({"version": str(version), "start": start, "end": start + count})
        start += count
    return spans


def _text(call: GenerateCall, done: RequestResult, core: EngineCore) -> str:
    if core.tokenizer is None:
        return ""
    ids = done.output_ids.tolist()
    matched = done.finish_reason.get("matched") if call.trims_stop else None
    if isinstance(matched, int):
        ids = ids[:-1]
    text = core.tokenizer.decode(ids, skip_special_tokens=call.skips_special_tokens)
    if isinstance(matched, str) and matched in text:
        text = text[: text.index(matched)]
    return text


def _sampling(params: SamplingBody, eos_token_ids: tuple[int, ...]) -> RequestSampling:
    stop_ids = () if params.ignore_eos else {*params.stop_token_ids, *eos_token_ids}
    return RequestSampling(
        max_new_tokens=params.max_new_tokens,
        temperature=0.0 if params.temperature < GREEDY_BELOW else params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        stop=(params.stop,) if isinstance(params.stop, str) else tuple(params.stop),
        stop_ids=tuple(sorted(stop_ids)),
        seed=params.seed if params.sampling_seed is None else params.sampling_seed,
    )


def _check(
    model: type[Body],
    values: Mapping[str, Any],
    prefix: str,
    off: Mapping[str, tuple[Any, ...]],
    inert: tuple[str, ...],
    errors: list[str],
) -> Body | None:
    """Return the validated ``values``, or None; append what is wrong with them to ``errors``."""
    kept = {}
    for key, value in values.items():
        if key in inert or (value is None and (key in off or key in model.model_fields)):
            continue
        if key not in off:
            kept[key] = value
        elif value not in off[key]:
            errors.append(f"{prefix}{key}: the embedded engine does not support it")
    try:
        return model.model_validate(kept)
    except ValidationError as error:
        errors.extend(prefix + line for line in describe_errors(error))
        return None
