"""The OpenAPI 3.1 document of the admin API, made of its routes and the models of its bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from runners.gateway.http.admin_routes import IDEMPOTENCY, SESSION_ID, AdminRoute
from runners.gateway.refusal import STATUS, RefusalKind
from runners.gateway.sessions.admin_bodies import ErrorAnswer

DIALECT = "3.1.0"
"""Version of OpenAPI; its schemas are JSON Schema 2020-12, which is what pydantic writes."""
VERSION = "1"
"""Of the admin API; a change that breaks its clients raises it."""
_SCHEMAS = "#/components/schemas/"


def describe_routes(routes: Sequence[AdminRoute], handlers: type) -> dict[str, Any]:
    """Return the document; ``handlers`` has a method for each route, which describes it."""
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [(ErrorAnswer, "serialization")]
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        models += [(route.body, "validation")] if route.body else []
        models += [(route.answer, "serialization")] if route.answer else []
        operations = paths.setdefault(f"/admin{route.path}", {})
        operations[route.method.lower()] = _describe(route, getattr(handlers, route.name).__doc__)
    _, schemas = models_json_schema(models, ref_template=_SCHEMAS + "{model}")
    return {
        "openapi": DIALECT,
        "info": {
            "title": "agentrl gateway: admin API",
            "version": VERSION,
            "description": "Sessions for agent programs. The keys of sessions open none of it.",
        },
        "security": [{"admin_key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"admin_key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(route: AdminRoute, text: str) -> dict[str, Any]:
    refusals = (RefusalKind.UNAUTHENTICATED, *route.refusals)
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": text,
        "responses": {
            "200": {"description": "Done.", "content": _json(route.answer)},
            "default": {"description": "Refused.", "content": _json(ErrorAnswer)},
            **{
                str(STATUS[kind]): {"description": kind.value, "content": _json(ErrorAnswer)}
                for kind in refusals
            },
        },
    }
    parameters = []
    if SESSION_ID in route.path:
        name = SESSION_ID.strip("{}")
        parameters.append({"name": name, "in": "path", "required": True, "schema": _TEXT})
    if route.name == "create_session":
        parameters.append({"name": IDEMPOTENCY, "in": "header", "schema": _TEXT})
    if parameters:
        operation["parameters"] = parameters
    if route.body:
        required = any(field.is_required() for field in route.body.model_fields.values())
        operation["requestBody"] = {"required": required, "content": _json(route.body)}
    return operation


_TEXT = {"type": "string"}


def _json(model: type[BaseModel] | None) -> dict[str, Any]:
    schema = {"$ref": _SCHEMAS + model.__name__} if model else {"type": "object"}
    return {"application/json": {"schema": schema}}
