"""The HTTP surface: keys, endpoints, error envelopes."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.testing.completions import END
from agentrl.testing.scripted_engine import ScriptedEngine
from tests.fakes.running_gateway import LIMITS, Agent, Gateway, user


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/messages", {}), ("/v1/messages/count_tokens", {})],
)
@pytest.mark.parametrize("key", ["", "sk-guess"])
async def test_an_unknown_key_gets_401_in_the_dialects_envelope(
    path: str, body: dict[str, object], key: str, gateway: Gateway
) -> None:
    status, answer = await Agent(gateway, "s", key).post(path, body)
    assert status == 401
    assert answer["type"] == "error"
    assert answer["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/responses/compact"])
async def test_openais_endpoints_refuse_in_openais_envelope(path: str, gateway: Gateway) -> None:
    status, answer = await Agent(gateway, "s", "sk-guess").post(path, {})
    if path.endswith("compact"):
        assert (status, answer["error"]["type"]) == (404, "invalid_request_error")
    else:
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    assert answer.keys() == {"error"}


@pytest.mark.parametrize(
    ("headers", "field", "kind"),
    [({"anthropic-version": "2023-06-01"}, "type", "model"), ({}, "object", "model")],
)
async def test_models_are_listed_in_the_clients_dialect(
    headers: dict[str, str], field: str, kind: str, gateway: Gateway
) -> None:
    agent = await gateway.session()
    headers = {**headers, "authorization": f"bearer {agent.key}"}
    async with gateway.http.get(gateway.url + "/v1/models", headers=headers) as response:
        listed = await response.json()
    assert [model[field] for model in listed["data"]] == [kind]
    url = gateway.url + "/v1/models/claude-x"
    async with gateway.http.get(url, headers=headers) as response:
        model = await response.json()
    assert (model["id"], model[field]) == ("claude-x", kind)


@pytest.mark.parametrize(
    ("headers", "keys"),
    [({"anthropic-version": "2023-06-01"}, {"type", "error"}), ({}, {"error"})],
)
async def test_models_need_a_key_too(
    headers: dict[str, str], keys: set[str], gateway: Gateway
) -> None:
    for path in ("/v1/models", "/v1/models/claude-x"):
        async with gateway.http.get(gateway.url + path, headers=headers) as response:
            assert response.status == 401
            assert (await response.json()).keys() == keys


@pytest.mark.parametrize("path", ["/", "/health", "/api/hello"])
async def test_probes_need_no_key(path: str, gateway: Gateway) -> None:
    async with gateway.http.head(gateway.url + path) as response:
        assert response.status == 200
    async with gateway.http.get(gateway.url + path) as response:
        assert (await response.json())["status"] == "ok"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", "/v1/complete"), ("GET", "/v1/messages"), ("POST", "/")),
        *(("GET", "/v1/responses/resp_1"), ("GET", "/v1/chat/completions")),
    ],
)
async def test_an_unknown_endpoint_is_404_in_an_envelope(
    method: str, path: str, gateway: Gateway
) -> None:
    async with gateway.http.request(method, gateway.url + path) as response:
        body = await response.json()
    assert response.status == 404
    assert f"no such endpoint: {method} {path}" in body["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b'"text"', b"\xff\xfe", b'{"model": "\\ud83e"}'])
async def test_an_invalid_body_is_400(body: bytes, gateway: Gateway) -> None:
    agent = await gateway.session()
    paths = ("/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/responses")
    for path in paths:
        status, answer = await agent.post(path, body)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


async def test_a_body_beyond_the_limit_is_413(gateway: Gateway) -> None:
    agent = await gateway.session()
    status, answer = await agent.post("/v1/messages", b" " * ((LIMITS["body_mb"] << 20) + 1))
    assert (status, answer["error"]["type"]) == (413, "request_too_large")


async def test_a_refused_request_leaves_no_trace(gateway: Gateway, engine: ScriptedEngine) -> None:
    agent = await gateway.session()
    status, _ = await agent.post("/v1/messages", agent.body([user("hi")], max_tokens="many"))
    assert status == 400
    engine.say(f"hello{END}")
    await agent.ask([user("hi")])
    stats = await agent.stats()
    assert (stats["turns"], stats["breaks"], stats["in_flight"]) == (1, [], 0)


async def test_keys_never_reach_the_run_directory(gateway: Gateway, engine: ScriptedEngine) -> None:
    agent = await gateway.session()
    engine.say(f"hello{END}")
    await agent.ask([user("hi")])
    await agent.finish()
    kept = b"".join(
        file.read_bytes() for file in Path(gateway.run_dir).rglob("*") if file.is_file()
    )
    assert b"hello" in kept
    assert agent.key.encode() not in kept
    assert gateway.admin_key.encode() not in kept
