"""A gateway's settings: filled from a run's configuration, sent as JSON, read back the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from conf.compose import compose
from runners.gateway.settings import GatewaySettings
from runners.records.routing import RoutingShape

SHAPE = RoutingShape(layers=3, top_k=2, experts=4, routed=(1, 2))


def from_config(*overrides: str, routing: RoutingShape | None = None) -> GatewaySettings:
    return GatewaySettings.from_config(
        compose(list(overrides)),
        run_dir=Path("/run"),
        engine_url="http://127.0.0.1:1",
        tokenizer=Path("/tokenizer"),
        routing=routing,
    )


@pytest.mark.parametrize("routing", [None, SHAPE])
def test_what_is_sent_as_json_is_read_back_the_same(routing: RoutingShape | None) -> None:
    settings = from_config(routing=routing)
    assert GatewaySettings.model_validate(settings.model_dump(mode="json")) == settings
    assert settings.routing == routing


def test_the_engine_s_servers_and_parsers_are_those_of_the_configuration() -> None:
    sglang = from_config(
        "engine=sglang",
        "engine.url=http://127.0.0.1:1",
        "engine.workers=[http://127.0.0.1:2]",
        "engine.tool_call_parser=qwen25",
        "model=local",
        "model.tokenizer=/tokenizer",
        "model.renderer=chat_template",
        "model.max_context_tokens=1000",
    )
    assert sglang.engine_workers == ("http://127.0.0.1:2",)
    assert (sglang.tool_call_parser, sglang.reasoning_parser) == ("qwen25", None)
    embedded = from_config()
    assert (embedded.engine_workers, embedded.tool_call_parser) == ((), None)


@pytest.mark.parametrize(("scenario", "window"), [("linear", None), ("compact", 700)])
def test_the_window_is_that_of_a_scenario_with_compactions(
    scenario: str, window: int | None
) -> None:
    more = [f"scenario.window_tokens={window}"] if window else []
    assert from_config(f"scenario={scenario}", *more).compaction_window == window


def test_a_setting_that_does_not_exist_is_refused() -> None:
    sent = from_config().model_dump(mode="json")
    with pytest.raises(ValidationError, match="ping_seconds"):
        GatewaySettings.model_validate({**sent, "ping_seconds": 1})
