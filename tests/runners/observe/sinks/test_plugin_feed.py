"""Metrics reach plug-ins in order, and a failing or slow one harms neither the run nor another."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from runners.observe.sinks.plugin_feed import SinkFeed
from runners.system.plugins.calls import PluginFailedError
from runners.system.plugins.loading import PluginError

SOURCE = """
import asyncio, json, time

class File:
    def __init__(self, path: str, slow_s: float = 0.0):
        self.path, self.slow_s = path, slow_s
    def __call__(self, metrics):
        if metrics["step"] == 1:
            time.sleep(self.slow_s)
        with open(self.path, "a") as file:
            file.write(json.dumps(metrics) + "\\n")

async def odd(metrics):
    if metrics["step"] % 2:
        raise ConnectionError("no tracker")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "tracker.py"
    place.write_text(SOURCE)
    return place


def feed(*lines: str) -> tuple[SinkFeed, list[str]]:
    failures: list[str] = []

    def report(error: PluginFailedError) -> None:
        failures.append(str(error))

    sinks = compose([f"observe.sinks=[{','.join(lines)}]"]).observe.sinks
    return SinkFeed(sinks, report), failures


async def test_every_sink_gets_every_step_in_order_whatever_another_does(
    file: Path, tmp_path: Path
) -> None:
    slow = f"{{target: '{file}:File', options: {{path: '{tmp_path}/slow', slow_s: 0.2}}}}"
    fast = f"{{target: '{file}:File', options: {{path: '{tmp_path}/fast'}}}}"
    sinks, failures = feed(slow, f"'{file}:odd'", fast)
    for step in range(1, 5):
        sinks.add({"step": step, "train/reward": step / 2})
    await asyncio.sleep(0)
    await sinks.close()
    for name in ("slow", "fast"):
        rows = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        assert [row["step"] for row in rows] == [1, 2, 3, 4]
        assert rows[-1]["train/reward"] == 2
    assert [text.partition("raised ")[2][:27] for text in failures] == 2 * [
        "ConnectionError: no tracker"
    ]


def test_a_sink_that_cannot_be_called_is_refused_at_the_start(file: Path) -> None:
    with pytest.raises(PluginError, match=r"options.path has no value"):
        feed(f"'{file}:File'")
    with pytest.raises(ConfigError, match="is not known"):
        compose(["observe.sinks=[wandb]"])


def test_sinks_are_refused_where_another_trains() -> None:
    with pytest.raises(ConfigError, match="trainer=slime has loggers of its own"):
        compose(
            [
                *("trainer=slime", "model=qwen3_30b_a3b", "model.path=weights", "launch=ray"),
                *(
                    "launch.shared_dir=/shared",
                    "launch.head=head",
                    "task=jsonl",
                    "task.path=t.jsonl",
                ),
                "observe.sinks=['m:Z']",
            ]
        )
