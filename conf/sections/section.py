"""Base class and shared types of the configuration's sections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

Port = Annotated[int, Field(ge=0, le=65535)]
"""TCP port to listen on; 0: any free port."""


ENGINE_KEY = "AGENTRL_ENGINE_KEY"
"""Environment variable with the key that engines want as a bearer token; unset: they want none."""
TEACHER_KEY = "AGENTRL_TEACHER_KEY"
"""The same for the server of ``trainer.distill.url``, which never gets the engine's key."""
SERVER_KEYS = (ENGINE_KEY, TEACHER_KEY)


def _check_base_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest:
        raise ValueError("must be a base URL such as http://127.0.0.1:30000")
    if any(sign in rest for sign in "@?#"):
        raise ValueError(
            "must hold no user, password or query, since the configuration is stored and shown: "
            f"secrets belong into the environment (an engine's key: {ENGINE_KEY}; a teacher's: "
            f"{TEACHER_KEY}; a collector's: OTEL_EXPORTER_OTLP_HEADERS)"
        )
    return url.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(_check_base_url)]
"""HTTP base URL, without a slash at its end."""


def expecting(text: str) -> WrapValidator:
    """Return a validator that says of every wrong value what is expected as a whole.

    pydantic itself has an error for each type of a union, and for each item of a tuple.
    """

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:  # what is wrapped does not see JSON, in which a list is a tuple
            return handler(tuple(value) if isinstance(value, list) else value)
        except ValidationError as error:
            raise ValueError(f"must be {text}") from error

    return WrapValidator(validate)


@dataclass(frozen=True, slots=True)
class Follows:
    """Mark a key whose default follows from other keys.

    pydantic sees no default: what is composed has the value.
    """

    expression: str
    """Interpolation of OmegaConf with the functions of ``resolvers``: ``${run.steps}``."""


class Section(BaseModel):
    """One section of the configuration.

    A field is said once: its type and range, its default, and below it the string that describes
    it in `agentrl show KEY` and in the reference of keys. YAML files hold what differs.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )
