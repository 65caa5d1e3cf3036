"""Each attempt is a trace: its stages and its turns, with no word of what was said."""

from __future__ import annotations

import asyncio
import itertools
import logging
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from runners.observe.sinks.spans import describe_attempt, open_span_feed
from runners.records.record import RolloutRecord
from runners.records.store.run_store import RunStore
from runners.tasks.contract import Task
from tests.fakes.otlp_collector import Collector, serve_collector
from tests.fakes.records import LOST, a_rollout, a_turn
from tests.runners.rollouts.world import World, world

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")


def attributes(span: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


async def send(here: World, collector: Collector, records: list[RolloutRecord]) -> None:
    config = compose([f"observe.otlp.url={collector.url}"])
    async with open_span_feed(config.observe.otlp, here.store) as feed:
        assert feed is not None
        for record in records:
            feed.add(record)


async def test_an_attempt_is_a_trace_of_its_stages_and_turns(
    tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20of-the-collector")
    async with world(tmp_path, task) as here:
        records = await here.pool().run(here.specs(2))
        with serve_collector() as collector:
            await send(here, collector, records)
            await send(here, collector, records[:1])  # again: ids are the same
        turns = {record.session_id: here.store.turns(record.session_id) for record in records}
    spans = collector.spans()
    roots = [span for span in spans if not span.parent_span_id]
    assert len({span.trace_id for span in spans}) == len(records) == len(roots) - 1
    by_rollout = {attributes(span)["agentrl.rollout_id"]: span for span in roots}
    for record in records:
        root = by_rollout[record.rollout_id]
        own = {span.span_id: span for span in spans if span.trace_id == root.trace_id}
        inside = [span for span in own.values() if span.parent_span_id == root.span_id]
        inside.sort(key=lambda span: span.start_time_unix_nano)
        assert [span.name for span in inside] == [
            *("queue", "session", "boot", "harness", "patch", "teardown", "finish", "grade")
        ]
        for before, after in itertools.pairwise(inside):
            assert abs(before.end_time_unix_nano - after.start_time_unix_nano) < 1000
        harness = inside[3]
        calls = [span for span in own.values() if span.parent_span_id == harness.span_id]
        assert len(calls) == record.turns == len(turns[record.session_id])
        said = attributes(calls[0])
        [turn] = turns[record.session_id]
        assert said["gen_ai.usage.output_tokens"] == turn.output_tokens
        assert abs(calls[0].start_time_unix_nano - turn.started_at * 1e9) < 1000
        assert attributes(root)["agentrl.outcome"] == "policy.finished"
        assert attributes(root)["agentrl.reward"] == record.reward
    sent = b"".join(collector.bodies)
    for record in records:
        assert record.rollout_id.encode() in sent
        assert record.final_message.encode() not in sent
    assert b"fix it" not in sent, "the prompt"
    assert str(tmp_path).encode() not in sent
    assert collector.headers[0]["authorization"] == "Bearer of-the-collector"


async def test_a_collector_that_refuses_or_is_away_costs_a_warning_and_the_spans(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        records = await here.pool().run(here.specs(2))
        with serve_collector() as collector:
            collector.status = 400
            await send(here, collector, records)
            await asyncio.sleep(0)
        await send(here, collector, records[:1])  # nobody listens any more
        await asyncio.sleep(0)
        texts = [event.data["error"] for event in here.store.events("sink_failed")]
    assert len(texts) == 4
    assert "opentelemetry: 2 entries were not delivered" in texts
    assert any("does not take spans: Failed to export" in text for text in texts)
    assert any("does not take spans: Transient error" in text for text in texts)
    assert logging.getLogger("opentelemetry.exporter").handlers == []


async def test_an_attempt_that_the_collector_never_takes_holds_up_no_other(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        records = await here.pool().run(here.specs(3))
        with serve_collector() as collector:
            collector.refused = records[0].rollout_id.encode()
            await send(here, collector, records)
            await asyncio.sleep(0)
        texts = [event.data["error"] for event in here.store.events("sink_failed")]
    sent = b"".join(collector.bodies)
    assert [record.rollout_id.encode() in sent for record in records] == [False, True, True]
    assert texts[1:] == ["opentelemetry: 1 entries were not delivered"]


def test_a_name_that_a_program_gives_a_thread_is_in_no_span(tmp_path: Path) -> None:
    names = ("main", "the text of a file", "another", "the text of a file")
    with RunStore.create(tmp_path / "run", {}) as store:
        record = a_rollout()
        store.add_session(record.session_id, {})
        for index, name in enumerate(names):
            store.add_turn(a_turn(record.session_id, index, thread=name))
        facts = describe_attempt(store, record, ended_at=100.0)
    [harness] = [span for span in facts.inside if span.name == "harness"]
    threads = [turn.attributes["agentrl.thread"] for turn in harness.inside]
    assert threads == ["main", "thread-1", "thread-2", "thread-1"]


def test_a_failed_attempt_is_an_error_and_one_without_a_session_has_its_stages(
    tmp_path: Path,
) -> None:
    with RunStore.create(tmp_path / "run", {}) as store:
        lost = a_rollout(
            outcome=LOST, reward=None, solved=None, timings={"queue": 1.0, "boot": 2.0}
        )
        facts = describe_attempt(store, lost, ended_at=100.0)
    assert facts.failed
    assert (facts.start, facts.end) == (97.0, 100.0)
    assert [(span.name, span.start) for span in facts.inside] == [("queue", 97.0), ("boot", 98.0)]
    assert "agentrl.reward" not in facts.attributes
