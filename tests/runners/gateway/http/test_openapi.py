"""The OpenAPI document of the admin API: valid, and true to what the handlers take and answer."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from agentrl.testing.completions import END
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.http.admin_api import AdminApi
from runners.gateway.http.admin_routes import ROUTES
from runners.gateway.http.openapi import describe_routes
from runners.gateway.sessions.admin_bodies import ErrorAnswer
from tests.fakes.running_gateway import Gateway, user

DOCUMENT = describe_routes(ROUTES, AdminApi)


def test_the_document_is_valid_openapi() -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    assert DOCUMENT["openapi"].startswith("3.1.")
    validator.validate(DOCUMENT)


def test_every_handler_has_a_route_and_every_operation_says_what_it_does() -> None:
    handlers = {name for name in vars(AdminApi) if not name.startswith("_")} - {"answer"}
    assert handlers == {route.name for route in ROUTES}
    operations = [each for path in DOCUMENT["paths"].values() for each in path.values()]
    assert {each["operationId"] for each in operations} == handlers
    assert all(each["summary"] for each in operations)


def test_the_fields_that_the_session_declares_are_described() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert "retry" in schemas["SessionStats"]["properties"]["engine_retries"]["description"].lower()
    assert schemas["SegmentBody"]["properties"]["tokens"]["items"] == {"type": "integer"}
    assert schemas["FinishAnswer"]["additionalProperties"] is False


@pytest.fixture
async def admin(gateway: Gateway) -> Any:
    """Call the admin API of a gateway and check each answer against the model of its route."""
    key = {"authorization": f"Bearer {gateway.admin_key}"}

    async def call(method: str, path: str, template: str, body: object = None) -> dict[str, Any]:
        async with aiohttp.ClientSession(headers=key) as http:
            data = None if body is None else json.dumps(body)
            async with http.request(method, gateway.url + path, data=data) as response:
                raw = await response.read()
        operation = DOCUMENT["paths"][template][method.lower()]
        assert str(response.status) in operation["responses"], (method, path, response.status)
        route = next(r for r in ROUTES if (r.method, f"/admin{r.path}") == (method, template))
        model = route.answer if response.status == 200 else ErrorAnswer
        if model is not None:
            model.model_validate_json(raw)
        answer: dict[str, Any] = json.loads(raw)
        return answer

    return call


async def test_every_answer_has_the_documented_form(
    admin: Any, gateway: Gateway, engine: ScriptedEngine
) -> None:
    sessions, one = "/admin/sessions", "/admin/sessions/{session_id}"
    made = await admin("POST", sessions, sessions, {"session_id": "s1", "task": "t", "seed": 1})
    assert made["session_id"] == "s1"
    await admin("POST", sessions, sessions, {"session_id": "s1"})
    agent = await gateway.session("s2")
    engine.say(f"hello{END}")
    await agent.ask([user("hi")])
    await admin("GET", f"{sessions}/s2", one)
    finished = await admin("POST", f"{sessions}/s2/finish", f"{one}/finish", {})
    assert finished["segments"]
    await admin("POST", f"{sessions}/s2/finish", f"{one}/finish", {"segments": False})
    await admin("DELETE", f"{sessions}/s2", one)
    for method, path, template in (
        ("GET", f"{sessions}/s2", one),
        ("DELETE", f"{sessions}/s2", one),
        ("POST", f"{sessions}/s2/finish", f"{one}/finish"),
    ):
        assert (await admin(method, path, template))["type"] == "error"
    await admin("POST", "/admin/pause", "/admin/pause", {"deadline_s": 1})
    await admin("POST", "/admin/resume", "/admin/resume")
    served = await admin("GET", "/admin/openapi.json", "/admin/openapi.json")
    assert served == json.loads(json.dumps(DOCUMENT))
