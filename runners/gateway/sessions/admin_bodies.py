"""Bodies of the admin API's requests and answers.

The OpenAPI document is made of these models (``openapi.py``); the fields that a record or the
session's counters declare are taken from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveInt, create_model

from conf.sections.scenario import ScenarioKind
from runners.engines.resilient import PauseResult
from runners.gateway.sessions.counters import SessionCounters
from runners.gateway.sessions.service_failures import FailedService
from runners.records.declaration import field_docs
from runners.records.record import IdArray, LogprobArray, Segment

JSON_OF = {IdArray: list[int], LogprobArray: list[float], NDArray[np.bool_]: list[bool]}
"""Type in JSON of each array of a segment."""


class AdminBody(BaseModel):
    """A JSON object of the admin API."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


B = TypeVar("B", bound=AdminBody)


def _fields_of(record: type) -> Callable[[type[B]], type[B]]:
    """Add the fields of a dataclass to a model, as they are in JSON, with their descriptions."""
    docs = field_docs(record)
    fields: dict[str, Any] = {
        name: (JSON_OF.get(kind, kind), Field(description=docs.get(name)))
        for name, kind in get_type_hints(record).items()
    }

    def derive(model: type[B]) -> type[B]:
        return create_model(
            model.__name__,
            __base__=model,
            __doc__=model.__doc__,
            __module__=model.__module__,
            **fields,
        )

    return derive


# --- requests ----------------------------------------------------------------------------------


class SamplingChanges(AdminBody):
    """Sampling settings in which a session differs from the gateway's."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: int | None = None
    max_new_tokens: PositiveInt | None = None


class SessionRequest(AdminBody):
    """The session that is wanted."""

    session_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")] | None = None
    """Used once in a run; null: one is made up."""
    task: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Name of what the program works on: sessions of one task are a group; null: the session's id.
    """
    max_context_tokens: PositiveInt | None = None
    """At most the model's."""
    max_turns: PositiveInt | None = None
    """Turns that it may take; null: ``gateway.limits.turns``."""
    sampling: SamplingChanges = SamplingChanges()
    scenario: ScenarioKind = "linear"
    seed: Annotated[int, Field(ge=0)] | None = None
    """Makes what is sampled repeatable."""


class FinishRequest(AdminBody):
    """The end of a session."""

    reward: float | None = None
    """The last one counts; null: the one that was given before, if there was one."""
    segments: bool = True
    """False: answer without the tokens of the chains, which are megabytes."""


class PauseRequest(AdminBody):
    """A pause of all sampling."""

    deadline_s: NonNegativeFloat
    """Time for the generations in flight to finish."""
    keep: bool = False
    """Continue those that do not, after the pause, from the tokens that they have; the weights may
    then have changed under them. False: they are sampled again.
    """


# --- answers -----------------------------------------------------------------------------------


class CreatedSession(AdminBody):
    """A session and its key."""

    session_id: str
    api_key: str
    """Opens this session alone, on the agents' endpoints alone."""
    control: str
    """The gateway's socket for sandboxes of its machine that have no network."""


@_fields_of(SessionCounters)
class SessionStats(AdminBody):
    """State and counters of a session."""

    session_id: str
    finished: bool
    in_flight: int
    over_limit: int
    """Requests and connections refused for asking more than one session may have."""
    failed_service: FailedService | None
    """The service that failed last; null: every request since then was answered."""
    routing_missing: int
    routing_fault: str | None


class FinishedStats(SessionStats):
    """State and counters of a session that is finished."""

    forks: int
    """Breaks that are no compaction: some of the history was lost."""
    trained_tokens: int | None = None
    """Sampled tokens that the loss masks mark; absent without ``segments``."""


class KeptRollout(AdminBody):
    """The rollout that a session has become, as ``dump-trajectories`` exports it."""

    rollout_id: str
    task: str
    outcome: str
    """``policy.finished``, ``budget.turns``, or the infrastructure's failure."""
    message: str
    reward: float | None
    """Null: none was given, or the infrastructure failed, which is no reward at all."""


@_fields_of(Segment)
class SegmentBody(AdminBody):
    """A token chain from its root; four lists of one length."""


class FinishAnswer(AdminBody):
    """A session that is finished."""

    stats: FinishedStats
    segments: list[SegmentBody] | None = None
    """Its chains, token by token; absent if they were not asked for."""
    rollout: KeptRollout | None = None
    """Absent in a campaign, whose driver keeps the rollouts."""


class DeletedSession(AdminBody):
    """A session that the gateway has forgotten; its turns are kept."""

    session_id: str
    deleted: Literal[True]


@_fields_of(PauseResult)
class Paused(AdminBody):
    """The end of the generations that were in flight."""


class Nothing(AdminBody):
    """An empty object."""


class ErrorText(AdminBody):
    """The reason of a refusal."""

    type: str
    message: str


class ErrorAnswer(AdminBody):
    """A refusal."""

    type: Literal["error"]
    error: ErrorText
