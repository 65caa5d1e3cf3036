"""What an engine can do, tried: each thing that can be missing is missing once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

from conf.compose import compose
from conf.errors import ExitCode
from runners.check import EngineUnfit, probe_engine, refuse_trouble
from runners.gateway.tokenizer import load_renderer, load_tokenizer
from runners.probe import Finding, Wanted, probe
from runners.trajectory.routing import RoutingShape
from tests.fakes.scripted_engine import Completion
from tests.fakes.sglang_server import Router, SglangServer
from tests.fakes.tiny_tokenizer import tiny_tokenizer, write_tiny_tokenizer

SHAPE = RoutingShape(layers=2, top_k=2, experts=8, routed=(0, 1))


@pytest.fixture
async def server() -> AsyncIterator[SglangServer]:
    async with SglangServer() as engine:
        engine.always = Completion("a b<|im_end|>")
        engine.shape = SHAPE
        yield engine


@pytest.fixture
def wanted(tmp_path: Path) -> Wanted:
    tokenizer = load_tokenizer(write_tiny_tokenizer(tmp_path / "tokenizer"))
    renderer = load_renderer(tokenizer, "qwen3")
    return Wanted(tokenizer, renderer, 32768, SHAPE, "qwen25")


def trouble(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.detail for finding in findings if not finding.ok}


async def test_a_server_that_can_do_everything_has_no_trouble(
    server: SglangServer, wanted: Wanted
) -> None:
    findings = await probe(server.url, [], wanted)
    assert trouble(findings) == {}
    details = {finding.name: finding.detail for finding in findings}
    assert list(details) == [
        *("generates, with logprobs", "weight version", "loads", "abort", "context length"),
        *("tokenizer", "routing", "tool-call parser"),
    ]
    assert details["abort"] == "ends a running request"
    assert details["weight version"] == "1"
    assert details["context length"] == "40,960 tokens"


async def test_a_router_alone_is_told_from_its_servers(
    server: SglangServer, wanted: Wanted
) -> None:
    async with Router(server) as router:
        found = trouble(await probe(router.url, [], wanted))
        mend = f"engine.url is a router: set engine.workers=[{server.url}]"
        assert mend in found["loads"]
        assert mend in found["abort"]
        assert "A router drops the field that asks for it" in found["routing"]
        listed = trouble(await probe(router.url, [server.url], wanted))
        assert list(listed) == ["routing"]
        direct = trouble(await probe(server.url, [server.url], wanted))
    assert direct == {}


async def test_what_is_missing_is_named_with_its_mend(server: SglangServer, wanted: Wanted) -> None:
    server.shape = None
    server.context_length = 1000
    server.weight_version = "abc"
    found = trouble(await probe(server.url, [], replace(wanted, tool_call_parser=None)))
    assert "--weight-version 0" in found["weight version"]
    assert "--context-length 32768" in found["context length"]
    assert set(found) == {"weight version", "context length", "routing"}


async def test_another_tokenizer_is_found_by_the_first_id_that_differs(
    server: SglangServer, wanted: Wanted
) -> None:
    other = Backend.from_str(tiny_tokenizer().to_str())
    other.add_tokens(["naïve"])
    server.tokenizer = other
    found = trouble(await probe(server.url, [], wanted))
    assert list(found) == ["tokenizer"]
    assert "set model.tokenizer" in found["tokenizer"]


async def test_a_server_that_is_deaf_to_aborts_is_found(
    server: SglangServer, wanted: Wanted
) -> None:
    server.deaf = True
    found = trouble(await probe(server.url, [], wanted))
    assert list(found) == ["abort"]
    assert "ended with 'stop'" in found["abort"]


async def test_a_parser_that_does_not_read_the_template_is_found(
    server: SglangServer, wanted: Wanted
) -> None:
    server.parsers = ("qwen25",)
    found = trouble(await probe(server.url, [], replace(wanted, tool_call_parser="glm45")))
    assert list(found) == ["tool-call parser"]
    assert "choose the parser of the model's own family" in found["tool-call parser"]


async def test_the_check_tries_the_engine_of_the_configuration(
    server: SglangServer, tmp_path: Path
) -> None:
    tokenizer = write_tiny_tokenizer(tmp_path / "tok")
    config = compose(
        [f"model.tokenizer='{tokenizer}'", "engine=sglang", f"engine.url={server.url}"]
    )
    refuse_trouble(await probe_engine(config))
    server.weight_version = "abc"
    with pytest.raises(EngineUnfit, match="engine: weight version: ") as error:
        refuse_trouble(await probe_engine(config))
    assert error.value.exit_code == ExitCode.PREFLIGHT
    assert await probe_engine(compose([])) == []
