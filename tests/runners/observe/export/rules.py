"""The rules of ATIF-v1.7 (Harbor's RFC 0001), as far as an export can break them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Extra = dict[str, Any] | None


class Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ToolCall(Rule):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: Extra = None


class Ref(Rule):
    trajectory_id: str
    """Of an embedded trajectory; one in a file has a path, which we never write."""
    session_id: str | None = None
    extra: Extra = None


class Result(Rule):
    source_call_id: str | None = None
    content: str | None = None
    subagent_trajectory_ref: list[Ref] | None = None
    extra: Extra = None


class Observation(Rule):
    results: list[Result]


class Metrics(Rule):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int]
    logprobs: list[float]
    extra: Extra = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        assert len(self.completion_token_ids) == len(self.logprobs) == self.completion_tokens
        assert self.cached_tokens <= self.prompt_tokens
        assert self.prompt_token_ids is None or len(self.prompt_token_ids) == self.prompt_tokens
        return self


class Step(Rule):
    step_id: int
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    message: str
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    llm_call_count: Literal[1] | None = None
    is_copied_context: Literal[True] | None = None
    extra: Extra = None

    @model_validator(mode="after")
    def _keeps_to_its_source(self) -> Self:
        if self.source != "agent":
            agents = (self.reasoning_content, self.tool_calls, self.metrics, self.llm_call_count)
            assert agents == (None,) * 4
        if self.timestamp is not None:
            datetime.fromisoformat(self.timestamp)
        calls = {call.tool_call_id for call in self.tool_calls or ()}
        for result in self.observation.results if self.observation else ():
            assert result.source_call_id is None or result.source_call_id in calls
        return self


class Agent(Rule):
    name: str
    version: str
    model_name: str
    tool_definitions: list[dict[str, Any]] | None = None


class FinalMetrics(Rule):
    total_prompt_tokens: int
    total_completion_tokens: int
    total_cached_tokens: int
    total_steps: int


class Trajectory(Rule):
    schema_version: Literal["ATIF-v1.7"]
    session_id: str | None = None
    trajectory_id: str
    agent: Agent
    steps: Annotated[list[Step], Field(min_length=1)]
    final_metrics: FinalMetrics
    subagent_trajectories: list[Trajectory] = []
    extra: Extra = None

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        assert [step.step_id for step in self.steps] == list(range(1, len(self.steps) + 1))
        inner = [one.trajectory_id for one in self.subagent_trajectories]
        assert len(set(inner)) == len(inner)
        for step in self.steps:
            for result in step.observation.results if step.observation else ():
                for ref in result.subagent_trajectory_ref or ():
                    assert ref.trajectory_id in inner
        return self

    def all(self) -> list[Trajectory]:
        """Return this one and all embedded ones."""
        return [self, *(deep for one in self.subagent_trajectories for deep in one.all())]
