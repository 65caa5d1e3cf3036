"""SGLang's HTTP API on a real socket: shapes, statuses and messages of every endpoint."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.server import WeightUpdateLock

Json = dict[str, Any]
IDS = list(range(10, 40))


class Http:
    """A few lines of client, so that tests read as requests and answers."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and body: decoded JSON, or text."""
        kwargs: Json = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.session.request(method, self.url + path, **kwargs) as response:
            if response.content_type == "application/json":
                return response.status, await response.json()
            return response.status, await response.text()

    async def get(self, path: str) -> tuple[int, Any]:
        return await self.call("GET", path)

    async def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        return await self.call("POST", path, {} if body is None else body)

    async def generate(self, ids: list[int] = IDS, **body: Any) -> Json:
        params = body.pop("sampling_params", {"max_new_tokens": 8, "temperature": 0})
        status, answer = await self.post(
            "/generate", {"input_ids": ids, "sampling_params": params, **body}
        )
        assert status == 200, answer
        assert isinstance(answer, dict)
        return answer


@pytest.fixture
async def http(url: str) -> AsyncIterator[Http]:
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield Http(session, url)


async def started(core: EngineCore) -> None:
    target = core.steps + 3
    while core.steps < target:
        await asyncio.sleep(0.001)


async def counted(core: EngineCore, running: int, waiting: int) -> None:
    """Return when the engine has exactly that load; the test's timeout is the alternative."""
    while True:
        load = await core.load()
        if (load.running, load.waiting) == (running, waiting):
            return
        await asyncio.sleep(0.001)


def endless(http: Http, rid: str, seed: int = 0) -> asyncio.Task[Json]:
    params = {"max_new_tokens": 1500, "sampling_seed": seed}
    return asyncio.create_task(http.generate(rid=rid, sampling_params=params))


# --- generate ---------------------------------------------------------------------------------


async def test_generate_has_sglangs_shape(http: Http, core: EngineCore) -> None:
    answer = await http.generate(rid="abc", return_logprob=True)
    meta = answer["meta_info"]
    assert len(answer["output_ids"]) == 8
    assert set(meta) == {
        "id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens",
        "reasoning_tokens", "weight_version", "weight_versions", "num_retractions",
        "e2e_latency", "queue_time",
        "input_token_logprobs", "output_token_logprobs", "output_token_logprobs_length",
    }  # fmt: skip
    assert meta["id"] == "abc"
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    counts = ("prompt_tokens", "completion_tokens", "cached_tokens")
    assert [meta[key] for key in counts] == [30, 8, 0]
    assert meta["weight_version"] == "0"
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": 8}]
    assert meta["output_token_logprobs_length"] == 8
    assert [item[1] for item in meta["output_token_logprobs"]] == answer["output_ids"]
    assert all(item[0] <= 0 and item[2] is None for item in meta["output_token_logprobs"])
    assert meta["e2e_latency"] >= meta["queue_time"] >= 0
    assert core.tokenizer is not None
    assert answer["text"] == core.tokenizer.decode(answer["output_ids"])


async def test_logprobs_and_the_rid_are_returned_on_request(http: Http) -> None:
    meta = (await http.generate())["meta_info"]
    assert "output_token_logprobs" not in meta
    assert "routed_experts" not in meta
    assert len(meta["id"]) == 32


async def test_stop_tokens_and_strings_are_trimmed_from_the_text_only(
    http: Http, core: EngineCore
) -> None:
    assert core.tokenizer is not None
    free = (await http.generate())["output_ids"]
    text = core.tokenizer.decode(free, skip_special_tokens=False)
    stop_id = free[3]
    first = free.index(stop_id)
    params: Json = {"max_new_tokens": 8, "temperature": 0, "skip_special_tokens": False}
    for extra, kept, matched in (
        ({"stop_token_ids": [stop_id]}, core.tokenizer.decode(free[:first], False), stop_id),
        ({"stop": text[5:7]}, text[: text.index(text[5:7])], text[5:7]),
    ):
        answer = await http.generate(sampling_params={**params, **extra})
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": matched}
        assert answer["text"] == kept
        assert answer["output_ids"] == free[: len(answer["output_ids"])]
        untrimmed = await http.generate(sampling_params={**params, **extra, "no_stop_trim": True})
        assert untrimmed["text"] == core.tokenizer.decode(untrimmed["output_ids"], False)


async def test_ignore_eos_ignores_stop_token_ids_too(http: Http) -> None:
    free = (await http.generate())["output_ids"]
    params = {"max_new_tokens": 8, "temperature": 0, "stop_token_ids": free, "ignore_eos": True}
    assert (await http.generate(sampling_params=params))["output_ids"] == free


async def test_routed_experts_are_int32_rows_from_the_requested_start(http: Http) -> None:
    async def rows(**body: Any) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        meta = (await http.generate(return_routed_experts=True, **body))["meta_info"]
        flat = np.frombuffer(base64.b64decode(meta["routed_experts"]), dtype="<i4")
        return flat.reshape(-1, 2, 2)

    whole = await rows()
    assert whole.shape == (30 + 8 - 1, 2, 2)
    assert whole.min() >= 0
    assert whole.max() < 8
    assert (whole[:, :, 0] != whole[:, :, 1]).all()
    assert np.array_equal(await rows(routed_experts_start_len=30), whole[30:])


async def test_both_names_of_the_seed_are_accepted(http: Http) -> None:
    answers = [
        (await http.generate(sampling_params={"max_new_tokens": 8, name: 5}))["output_ids"]
        for name in ("sampling_seed", "seed")
    ]
    assert answers[0] == answers[1]


async def test_keys_that_a_router_adds_are_accepted(http: Http) -> None:
    added: Json = {
        "stream": False, "log_metrics": True, "return_hidden_states": False, "text": None,
        "logprob_start_len": -1, "top_logprobs_num": 0, "lora_path": None, "priority": 3,
    }  # fmt: skip
    params = {"max_new_tokens": 2, "min_p": 0.0, "n": 1, "stop": None, "regex": None, "top_k": -1}
    await http.generate(sampling_params=params, **added)


GOOD: Json = {"input_ids": IDS, "sampling_params": {"max_new_tokens": 2}}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sampling_params": {"tempreature": 1}}, "sampling_params.tempreature: unknown key"),
        ({"sampling_params": {"tempreature": None}}, "sampling_params.tempreature: unknown key"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"sampling_params": {"temperature": "1"}}, "sampling_params.temperature"),
        ({"sampling_params": {"top_p": 0}}, "sampling_params.top_p"),
        ({"sampling_params": {"top_p": 1.5}}, "sampling_params.top_p"),
        ({"sampling_params": {"top_k": 0}}, "sampling_params.top_k"),
        ({"sampling_params": {"top_k": -2}}, "sampling_params.top_k"),
        ({"sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens"),
        ({"sampling_params": {"max_new_tokens": 2.5}}, "sampling_params.max_new_tokens"),
        ({"sampling_params": {"top_k": 2**63}}, "sampling_params.top_k"),
        ({"sampling_params": {"stop_token_ids": [-1]}}, "sampling_params.stop_token_ids"),
        ({"sampling_params": {"stop_token_ids": [2**63]}}, "sampling_params.stop_token_ids"),
        ({"sampling_params": {"stop_token_ids": [7] * 129}}, "sampling_params.stop_token_ids"),
        ({"sampling_params": {"min_p": 0.1}}, "sampling_params.min_p: the embedded engine"),
        ({"sampling_params": {"n": 2}}, "sampling_params.n: the embedded engine"),
        ({"sampling_params": []}, "sampling_params"),
        ({"smapling_params": {}}, "smapling_params: unknown key"),
        ({"stream": True}, "stream: the embedded engine does not support it"),
        ({"text": "hello"}, "text: the embedded engine does not support it"),
        ({"input_ids": None}, "input_ids: Field required"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[1, 2], [3]]}, "input_ids"),
        ({"input_ids": [1, "2"]}, "input_ids"),
        ({"input_ids": [800]}, "outside the vocabulary"),
        ({"input_ids": [2**40]}, "outside the vocabulary"),
        ({"input_ids": [1] * 2048}, "is longer than the model's context length (2048 tokens)"),
        (
            {"sampling_params": {"max_new_tokens": 2019}},
            "Requested token count exceeds the model's maximum context length of 2048 tokens.",
        ),
        ({"rid": 7}, "rid"),
        ({"return_routed_experts": True, "routed_experts_start_len": 31}, "beyond the prompt"),
        ({"routed_experts_start_len": -1}, "routed_experts_start_len"),
    ],
)
async def test_a_wrong_request_gets_400_with_the_key(http: Http, change: Json, named: str) -> None:
    status, answer = await http.post("/generate", {**GOOD, **change})
    assert status == 400
    assert set(answer) == {"error"}
    assert named in answer["error"]["message"]


async def test_all_errors_are_named_at_once(http: Http) -> None:
    body = {"input_ids": [1], "extra": 1, "sampling_params": {"odd": 1, "top_p": 2}}
    _, answer = await http.post("/generate", body)
    for key in ("extra", "sampling_params.odd", "sampling_params.top_p"):
        assert key in answer["error"]["message"]


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"null"])
async def test_a_body_that_is_no_json_object_gets_400(http: Http, body: bytes) -> None:
    for path in ("/generate", "/abort_request", "/pause_generation", "/update_weights_from_disk"):
        status, answer = await http.post(path, body)
        assert status == 400
        assert "body" in answer["error"]["message"]


async def test_a_live_rid_gets_400(http: Http, core: EngineCore) -> None:
    running = endless(http, "same")
    await started(core)
    status, answer = await http.post("/generate", {**GOOD, "rid": "same"})
    assert (status, "Duplicate request ID detected" in answer["error"]["message"]) == (400, True)
    await http.post("/abort_request", {"rid": "same"})
    await running


async def test_unknown_paths_and_methods_get_an_error_body(http: Http) -> None:
    for method, path, wanted in (("GET", "/nothing", 404), ("GET", "/generate", 405)):
        status, answer = await http.call(method, path)
        assert (status, set(answer)) == (wanted, {"error"})


# --- abort ------------------------------------------------------------------------------------


async def test_abort_ends_requests_by_rid_prefix_with_200_and_partial_output(
    http: Http, core: EngineCore
) -> None:
    running = [endless(http, rid, seed) for seed, rid in enumerate(("one-1", "one-2", "two"))]
    await counted(core, 3, 0)
    await started(core)
    for ignored in ({}, {"rid": ""}, {"rid": "unknown"}):
        assert await http.post("/abort_request", ignored) == (200, "")
    assert await http.post("/abort_request", {"rid": "one"}) == (200, "")
    for task in running[:2]:
        answer = await task
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(answer["output_ids"]) >= 3
    assert not running[2].done()
    await http.post("/abort_request", {"abort_all": True})
    assert (await running[2])["meta_info"]["finish_reason"]["type"] == "abort"


async def test_a_client_that_disconnects_aborts_its_request(http: Http, core: EngineCore) -> None:
    running = endless(http, "gone")
    await counted(core, 1, 0)
    running.cancel()
    await counted(core, 0, 0)


async def test_an_unknown_key_of_a_command_gets_400(http: Http) -> None:
    status, answer = await http.post("/abort_request", {"ridd": "x"})
    assert (status, answer["error"]["message"]) == (400, "ridd: unknown key")


# --- control ----------------------------------------------------------------------------------


async def test_flush_cache_works_when_idle_and_is_refused_when_busy(
    http: Http, core: EngineCore
) -> None:
    await http.generate()
    for method in ("GET", "POST"):
        assert (await http.call(method, "/flush_cache"))[0] == 200
    assert (await http.generate())["meta_info"]["cached_tokens"] == 0
    running = endless(http, "busy")
    await started(core)
    assert (await http.post("/flush_cache"))[0] == 400
    await http.post("/abort_request", {"abort_all": True})
    await running


async def test_update_weights_from_disk_switches_model_and_version(
    http: Http, core: EngineCore, other_model_dir: Path
) -> None:
    before = await http.generate()
    body = {"model_path": str(other_model_dir), "weight_version": "7"}
    status, answer = await http.post("/update_weights_from_disk", body)
    assert (status, answer["success"], answer["num_paused_requests"]) == (200, True, 0)
    assert "Weight version updated to 7" in answer["message"]
    after = await http.generate()
    assert after["output_ids"] != before["output_ids"]
    assert (after["meta_info"]["weight_version"], after["meta_info"]["cached_tokens"]) == ("7", 0)
    assert await http.get("/get_weight_version") == (200, {"weight_version": "7"})
    assert (await http.get("/get_model_info"))[1]["model_path"] == str(other_model_dir)


async def test_a_weight_update_waits_for_earlier_requests(
    http: Http, core: EngineCore, other_model_dir: Path
) -> None:
    body = {"model_path": str(other_model_dir), "weight_version": "7"}
    running = endless(http, "running")
    await started(core)
    updating = asyncio.create_task(http.post("/update_weights_from_disk", body))
    steps = core.steps
    while core.steps < steps + 300:  # long enough to load weights several times
        await asyncio.sleep(0.001)
    assert not updating.done()
    await http.post("/abort_request", {"rid": "running"})
    assert (await running)["meta_info"]["weight_version"] == "0"
    assert (await updating)[0] == 200
    assert (await http.generate())["meta_info"]["weight_version"] == "7"


async def test_a_generation_after_a_waiting_update_runs_after_it() -> None:
    weight_update_lock, said = WeightUpdateLock(), list[str]()
    leave = asyncio.Event()

    async def generation(name: str) -> None:
        async with weight_update_lock.generation():
            said.append(name)
            await leave.wait()

    async def update() -> None:
        async with weight_update_lock.update():
            said.append("update")

    tasks = []
    for call in (generation("a"), generation("b"), update(), generation("c")):
        tasks.append(asyncio.create_task(call))
        await asyncio.sleep(0)
    assert said == ["a", "b"]
    tasks.pop(1).cancel()
    leave.set()
    await asyncio.gather(*tasks)
    assert said == ["a", "b", "update", "c"]


async def test_a_weight_update_during_a_pause_is_immediate(
    http: Http, core: EngineCore, other_model_dir: Path
) -> None:
    running = endless(http, "running")
    await started(core)
    await http.post("/pause_generation", {"mode": "in_place"})
    body = {"model_path": str(other_model_dir), "weight_version": "7"}
    status, answer = await http.post("/update_weights_from_disk", body)
    assert (status, answer["num_paused_requests"]) == (200, 1)
    steps = core.steps
    await http.post("/continue_generation", {})
    while core.steps < steps + 3:  # the new weights have sampled something
        await asyncio.sleep(0.001)
    await http.post("/abort_request", {"abort_all": True})
    meta = (await running)["meta_info"]
    assert meta["weight_version"] == "7"
    old, new = meta["weight_versions"]
    assert (old["version"], new["version"]) == ("0", "7")
    assert (old["start"], old["end"], new["end"]) == (0, new["start"], meta["completion_tokens"])


async def test_a_weight_update_in_flight_neither_waits_for_requests_nor_holds_them_back(
    http: Http, core: EngineCore, other_model_dir: Path
) -> None:
    running = endless(http, "running")
    await started(core)
    body = {"model_path": str(other_model_dir), "weight_version": "7", "in_flight": True}
    status, answer = await http.post("/update_weights_from_disk", body)
    assert (status, answer["num_paused_requests"]) == (200, 1)
    await started(core)
    await http.post("/abort_request", {"abort_all": True})
    meta = (await running)["meta_info"]
    assert [part["version"] for part in meta["weight_versions"]] == ["0", "7"]
    assert meta["num_retractions"] == 0


async def test_a_bad_directory_gets_400_and_changes_nothing(http: Http, tmp_path: Path) -> None:
    before = await http.generate()
    status, answer = await http.post(
        "/update_weights_from_disk", {"model_path": str(tmp_path), "weight_version": 1}
    )
    assert (status, answer["success"]) == (400, False)
    assert "config.json" in answer["message"]
    after = await http.generate()
    assert after["output_ids"] == before["output_ids"]
    assert after["meta_info"]["weight_version"] == "0"


async def test_update_weights_needs_a_path_and_an_integer_version(http: Http) -> None:
    status, answer = await http.post("/update_weights_from_disk", {"weight_version": "new"})
    assert status == 400
    assert "model_path" in answer["error"]["message"]
    assert "weight_version" in answer["error"]["message"]


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_pause_holds_requests_and_continue_finishes_them(
    http: Http, core: EngineCore, mode: str
) -> None:
    params = {"max_new_tokens": 120, "temperature": 0}
    alone = await http.generate(sampling_params=params)
    call = asyncio.create_task(http.generate(sampling_params=params))
    await started(core)
    status, answer = await http.post("/pause_generation", {"mode": mode})
    assert (status, answer["status"]) == (200, "ok")
    late = asyncio.create_task(http.generate())
    await counted(core, *((0, 2) if mode == "retract" else (1, 1)))
    assert (await http.post("/continue_generation", {}))[0] == 200
    assert (await call)["output_ids"] == alone["output_ids"]
    assert (await late)["output_ids"] == alone["output_ids"][:8]


async def test_pause_aborts_by_default(http: Http, core: EngineCore) -> None:
    running = endless(http, "a")
    await started(core)
    assert (await http.post("/pause_generation", {}))[0] == 200
    assert (await running)["meta_info"]["finish_reason"]["type"] == "abort"
    await http.post("/continue_generation", {"torch_empty_cache": True})
    await http.generate()


async def test_an_unknown_pause_mode_gets_400(http: Http) -> None:
    status, answer = await http.post("/pause_generation", {"mode": "sleep"})
    assert (status, "mode" in answer["error"]["message"]) == (400, True)


# --- information ------------------------------------------------------------------------------


async def test_health_is_200_while_the_engine_lives_and_503_after(
    http: Http, core: EngineCore
) -> None:
    for path in ("/health", "/health_generate"):
        assert (await http.get(path))[0] == 200
    await core.close()
    for path in ("/health", "/health_generate"):
        assert (await http.get(path))[0] == 503
    status, answer = await http.post("/generate", GOOD)
    assert (status, "has stopped" in answer["error"]["message"]) == (500, True)


async def test_loads_count_running_and_waiting_requests(http: Http, core: EngineCore) -> None:
    running = [endless(http, f"r{index}", index) for index in range(14)]
    await counted(core, 13, 1)  # 13 reservations of 1530 tokens fit 20 000
    status, answer = await http.get("/v1/loads?include=core")
    assert status == 200
    assert abs(answer["timestamp"] - time.time()) < 60
    (load,) = answer["loads"]
    keys = ("dp_rank", "num_running_reqs", "num_waiting_reqs", "num_total_reqs")
    assert [load[key] for key in keys] == [0, 13, 1, 14]
    assert load["num_used_tokens"] >= 13 * 30
    await http.post("/abort_request", {"abort_all": True})
    await asyncio.gather(*running)


async def test_tokenize_returns_the_ids_of_a_text(http: Http, core: EngineCore) -> None:
    assert core.tokenizer is not None
    text = "naïve 日本"
    status, answer = await http.post("/tokenize", {"prompt": text, "add_special_tokens": False})
    ids = core.tokenizer.encode(text, add_special_tokens=False).ids
    assert (status, answer) == (
        200,
        {"tokens": ids, "count": len(ids), "max_model_len": core.max_context_tokens},
    )
    assert core.tokenizer.decode(ids) == text
    status, answer = await http.post("/tokenize", {"text": text})
    assert (status, "prompt" in answer["error"]["message"]) == (400, True)


async def test_server_and_model_info_report_limits_and_model(http: Http, model_dir: Path) -> None:
    for path in ("/server_info", "/get_server_info"):
        _, info = await http.get(path)
        keys = ("max_running_requests", "max_total_num_tokens", "context_length")
        assert [info[key] for key in keys] == [16, 20_000, 2048]
        assert info["internal_states"][0]["num_running_reqs"] == 0
    for path in ("/model_info", "/get_model_info"):
        _, info = await http.get(path)
        assert (info["model_path"], info["weight_version"]) == (str(model_dir), "0")
        assert info["is_generation"] is True
