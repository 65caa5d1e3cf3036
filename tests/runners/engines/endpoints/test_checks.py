"""Checks of endpoints: each fault once, and what they say about tokens."""

from __future__ import annotations

import pytest

from conf.compose import compose
from conf.sections.engine import EndpointEngineConfig
from conf.sections.section import ENGINE_KEY
from runners.engines.endpoints.checks import check_endpoint
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.endpoint_servers import MODEL, EndpointServer, TextAnswer
from tests.fakes.openai_server import OpenaiServer

SERVERS = [("openai", OpenaiServer), ("anthropic", AnthropicServer)]


async def run_checks(kind: str, url: str, *lines: str) -> dict[str, tuple[bool, str, bool]]:
    config = compose(
        [f"engine={kind}", f"engine.url={url}", f"engine.model={MODEL}", "run.steps=0", *lines]
    )
    assert isinstance(config.engine, EndpointEngineConfig)
    results = await check_endpoint(config, config.engine)
    return {each.name: (each.ok, each.detail, each.fatal) for each in results}


@pytest.mark.parametrize(("kind", "make"), SERVERS)
async def test_an_endpoint_is_asked_as_the_run_will(kind: str, make: type[EndpointServer]) -> None:
    async with make() as server:
        found = await run_checks(kind, server.url, "sampling.max_new_tokens=500")
    assert all(ok for ok, _, _ in found.values()), found
    assert found["model"][1] == MODEL
    assert found["an answer"][1].endswith("tokens in, 7 out")
    assert found["token ids"][1].startswith("not known")
    [sent] = server.requests
    assert sent["max_tokens"] == 500
    assert sent.get("temperature") == (1.0 if kind == "openai" else None)
    assert sent["tools"]


@pytest.mark.parametrize(("kind", "make"), SERVERS)
async def test_what_is_wrong_is_named(
    kind: str, make: type[EndpointServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENGINE_KEY, raising=False)
    async with make() as server:
        server.api_key = "wanted"
        found = await run_checks(kind, server.url)
        ok, says, fatal = found["an answer"]
        assert (ok, fatal) == (False, True)
        assert f"Set {ENGINE_KEY}" in says
        server.api_key, server.models = None, ["other", MODEL]
        server.say(TextAnswer(status=400, message="max_tokens: at most 8192"))
        found = await run_checks(kind, server.url)
        assert "at most 8192" in found["an answer"][1]
        server.models = ["other"]
        found = await run_checks(kind, server.url)
        assert found["model"] == (
            False,
            f"engine.model={MODEL} is not listed; listed are: other",
            False,
        )
        server.lists_models = False
        assert (await run_checks(kind, server.url))["model"][0]


async def test_an_endpoint_that_is_down_gives_one_result() -> None:
    found = await run_checks("openai", "http://127.0.0.1:9")
    assert list(found) == ["answers"]
    assert "Start the server that engine.url names" in found["answers"][1]
