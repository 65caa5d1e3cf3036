"""No text breaks what shows or stores it, and none controls the terminal."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from runners.observe.figures.metrics import MetricsWriter
from runners.observe.live.dashboard import Dashboard, LiveView
from runners.observe.live.progress import Progress
from runners.observe.live.status import read_status, render
from runners.observe.live.summary import summary_table
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.records.text import dumps, loads, make_printable
from runners.system.diagnostics.attempt_progress import AttemptWatch
from runners.system.diagnostics.call_graph import describe_pending
from runners.system.diagnostics.diagnostics import install_diagnostics
from tests.fakes.hostile import STEERING, TEXTS, Unreadable, exceptions, shown
from tests.fakes.records import CONFIG, a_rollout

each_text = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
each_exception = pytest.mark.parametrize("error", exceptions().values(), ids=exceptions())


@each_text
def test_printable_text_has_no_control_characters_and_keeps_the_rest(text: str) -> None:
    safe = make_printable(text)
    assert STEERING.search(safe) is None
    assert safe == make_printable(safe)
    safe.encode()
    if STEERING.search(text) is None:
        assert safe == text


@each_text
def test_a_note_is_one_line_that_both_views_show(text: str) -> None:
    progress = Progress(f"run {make_printable(text)[:20]}", 3)
    progress.add_note(f"<{text}>")
    (note,) = progress.notes
    assert len(note.splitlines()) == 1
    assert STEERING.search(note) is None
    assert note[:40] in shown(Dashboard(progress))
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with LiveView(progress, "off", Console(file=stream, width=80)):
        pass
    stream.seek(0)
    assert note in stream.read()


@each_text
def test_the_store_keeps_it_and_status_and_summary_show_it(text: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run [red] {} %s"
    with RunStore.create(run_dir, CONFIG) as store:
        store.event("kind", {"text": text, "error": Unreadable(), text: 1})
        outcome = Outcome(OutcomeCode.INTERNAL_ERROR, Stage.HARNESS, text)
        record = replace(a_rollout(), outcome=outcome, final_message=text, extra={"x": text})
        store.put_rollout(record)
        store.set_state(State.RUNNING)
        store.set_state(State.FAILED, exit_code=1, message=f"<{text}>")
        (event,) = store.events()
    assert event.data["error"].startswith("<Unreadable: ")
    found = read_status(run_dir)
    picture = shown(render(found))
    assert STEERING.search(picture) is None
    assert re.split(r"[\n\t\u2028]", make_printable(f"<{text}>"))[0][:100] in picture
    assert "run [red] {} %s" in picture
    json.dumps(found.to_dict()).encode()
    summary = {
        **{"run_dir": str(run_dir), "eval": {"first": 0.5, "last": 0.75}, "steps": 1},
        **{"rollouts": 1, "outcomes": {"policy.finished": 1}, "wall_s": 1.0},
        **{"groups": {}, "tokens": {}},
    }
    picture = shown(summary_table(summary))
    assert "50.0% → 75.0%" in picture
    assert str(tmp_path) in picture.replace("\n", "")


@each_text
def test_json_and_metrics_are_strict_whatever_is_in_them(text: str, tmp_path: Path) -> None:
    values = {"text": text, text: [text], "error": Unreadable(), "nan": float("nan")}
    assert set(loads(dumps(values))) >= {"text", "error", "nan"}
    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.write({"step": 1, **values})
    (line,) = (tmp_path / "metrics.jsonl").read_bytes().splitlines()
    assert json.loads(line)["nan"] is None


def test_what_is_nested_deeper_than_a_parser_goes_is_cut() -> None:
    deep: object = "end"
    for _ in range(900):  # what orjson reads
        deep = [deep]
    text = dumps({"arguments": deep})
    assert loads(text)
    assert "…" in text


@each_exception
async def test_an_unawaited_error_is_reported_in_one_line_and_kept(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("agentrl.test")
    with install_diagnostics(tmp_path, report=log.warning):
        context = {"message": "lost", "exception": error, "future": error, "{}": error}
        asyncio.get_running_loop().call_exception_handler(context)
    (record,) = caplog.records
    assert len(record.getMessage().splitlines()) == 1
    assert record.getMessage().startswith(f"lost: {type(error).__name__}")
    text = (tmp_path / "diagnostics" / "driver-errors.txt").read_text()
    assert "future: " in text


@each_text
async def test_a_task_of_any_name_is_described(text: str) -> None:
    with AttemptWatch().attempt(text) as flight:
        task = asyncio.create_task(asyncio.sleep(1000), name=text)
        flight.task = task
        await asyncio.sleep(0)
        flight.record_pending()
        described = describe_pending(task)
        task.cancel()
    assert flight.pending == described
    assert len(described) <= 2000
    described.encode()
