"""``rollouts``: the list and one rollout at two widths, filters, errors."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from runners.observe.viewer.rollout_view import open_rollout
from runners.observe.viewer.terminal import BLOCK, render_rollout
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from tests.cli.conftest import Agentrl
from tests.fakes.records import a_rollout, a_turn, branched_turns, example_run

Golden = Callable[[str, str], None]
HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202e[red]markup[/red]"


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with example_run(tmp_path / "run") as store:
        record = a_rollout(
            "train-000002-000-00",
            task_id="a-task-with-a-name-that-is-longer-than-its-column",
            turns=8,
            patch="diff --git a/x.py b/x.py\n@@ -1 +1 @@\n-a\n+b\n",
            verdict={"reason": "all pass", "tests": {"passed": ["test_sum"]}, "log": "ok\n" * 60},
        )
        store.add_session(record.session_id, {})
        for turn in branched_turns(record.session_id):
            store.add_turn(turn)
        store.put_rollout(record)
    return tmp_path / "run"


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_and_a_rollout_fit_the_terminal(
    agentrl: Agentrl, run_dir: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    listed = agentrl("rollouts", str(run_dir)).stdout
    found = agentrl("rollouts", str(run_dir), "--search", "explorer").stdout
    shown = agentrl("rollouts", str(run_dir), "train-000002-000-00").stdout
    whole = "\n".join((listed, found, shown))
    assert max(len(line) for line in whole.splitlines()) <= width
    golden(f"rollouts-{width}.txt", "\n".join(line.rstrip() for line in whole.splitlines()) + "\n")


def test_a_task_s_name_forges_no_line(agentrl: Agentrl, run_dir: Path) -> None:
    with RunStore.open(run_dir) as store:
        task = "a\n✓ train-000009-000-00\u2028attempt 7: policy.finished"
        store.put_rollout(a_rollout("train-000003-000-00", task_id=task))
    for arguments in (("--step", "3"), ("train-000003-000-00",)):
        lines = agentrl("rollouts", str(run_dir), *arguments).stdout.splitlines()
        [told] = [line for line in lines if "a ✓ train-000009-000-00 attempt" in line]
        assert told.lstrip().startswith("✓ ")
        assert "train-000003-000-00" in told


def test_filters_select_and_json_has_all_of_it(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl("rollouts", str(run_dir), "--only", "unsolved", "--only", "train", "--json")
    document = json.loads(done.stdout)
    assert [row["rollout_id"] for row in document["rollouts"]] == ["train-000001-00-01"]
    assert document["sums"]["graded"] == 1
    done = agentrl("rollouts", str(run_dir), "--sort=-tokens", "--limit", "1", "--json")
    assert json.loads(done.stdout)["sums"]["rollouts"] == 5
    done = agentrl("rollouts", str(run_dir), "train-000001-00-02", "--json")
    assert [each["code"] for each in json.loads(done.stdout)["attempts"]] == [
        "infra.sandbox_lost",
        "policy.finished",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--outcome", "polcy"), "did you mean policy?"),
        (("no-such",), "there is no rollout no-such"),
        (("train-000001-00-00", "--chain", "7"), "has 1 branches"),
        (("train-000001-00-00", "--only", "eval"), "filters and pages are of the list"),
        (("train-000001-00-00", "--offset", "1"), "filters and pages are of the list"),
        (("--full",), "--chain, --full, --wire and --timeline are of one rollout"),
        (("train-000001-00-00", "--timeline", "--full"), "--timeline has all branches"),
        (("train-000001-00-00", "--wire", "0", "--full"), "--wire shows one turn, whole"),
        (("train-000001-00-00", "--wire", "0"), "set gateway.record_wire=true"),
        (("train-000001-00-00", "--wire", "7"), "has no turn 7: it has 2"),
        (("train-000001-00-00", "--chain", "0", "--json"), "--json has every branch"),
    ],
)
def test_what_does_not_exist_is_an_error(
    agentrl: Agentrl, run_dir: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = agentrl("rollouts", str(run_dir), *arguments)
    assert done.code == 2
    assert said in done.stderr


def test_what_a_policy_wrote_controls_no_terminal(agentrl: Agentrl, tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", {}) as store:
        record = a_rollout(
            task_id=HOSTILE,
            patch=HOSTILE,
            verdict={"reason": HOSTILE, "tests": {HOSTILE: [HOSTILE]}, "log": HOSTILE},
        )
        store.add_session(record.session_id, {})
        store.put_rollout(record)
    for arguments in ((), (record.rollout_id,)):
        out = agentrl("rollouts", str(tmp_path / "run"), *arguments).stdout
        assert "[red]markup" in out
        assert not set("\x1b\x07\u202e") & set(out)


def test_what_a_policy_wrote_has_a_bounded_length_unless_all_is_asked_for(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    long = "x" * 300_000
    given = {f"a{index}": 1 for index in range(3000)} | {long: long}
    call = {"type": "function", "id": "c", "function": {"name": "Bash", "arguments": given}}
    sent = [{"role": "user", "content": long}] * 3 + [{"role": "user", "content": "y"}] * 3000
    with RunStore.create(tmp_path / "run", {}) as store:
        record = a_rollout(turns=1, patch=f"+{long}\n", verdict={"reason": long, "log": long})
        store.add_session(record.session_id, {})
        said = {"role": "assistant", "content": long, "tool_calls": [call]}
        store.add_turn(a_turn(record.session_id, request={"messages": sent}, reply=said))
        store.put_rollout(record)
    out = agentrl("rollouts", str(tmp_path / "run"), record.rollout_id).stdout
    assert len(out) < 60_000
    for note in ("2,903 messages before", "2,901 more arguments", "298,000 more characters"):
        assert f"… {note}: --full" in " ".join(out.split())


def test_what_is_in_progress_is_counted_below_the_list_and_has_one_of_its_own(
    agentrl: Agentrl, run_dir: Path
) -> None:
    with RunStore.open(run_dir) as store:
        store.set_state(State.RUNNING)
        store.add_session("train-000003-000-00-a0", {"task": "quartz"})
        store.add_turn(a_turn("train-000003-000-00-a0"))
        assert "1 more in progress: --only running" in agentrl("rollouts", str(run_dir)).stdout
        listed = agentrl("rollouts", str(run_dir), "--only", "running", "--task", "quartz").stdout
        assert "running.agent" in listed
        assert "more in progress" not in listed
        shown = agentrl("rollouts", str(run_dir), "train-000003-000-00").stdout
        assert "attempt 0 · running.agent · reward –" in " ".join(shown.split())
        assert "── turn 0" in shown


@pytest.mark.parametrize("width", [80, 120])
def test_what_happened_when_fits_the_terminal(
    agentrl: Agentrl, run_dir: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = agentrl("rollouts", str(run_dir), "train-000002-000-00", "--timeline")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert any("helper" in line or "agent" in line for line in lines)
    done = agentrl("rollouts", str(run_dir), "train-000002-000-00", "--timeline", "--json")
    moments = json.loads(done.stdout)["moments"]
    assert [each["turn"] for each in moments if each["kind"] == "turn"] == [*range(8)]


def test_a_long_text_is_printed_whole_in_parts(tmp_path: Path) -> None:
    long = f"begin{'x' * (3 * BLOCK)}\n" + "a line\n" * 4_000 + "end"
    call = {"type": "function", "function": {"name": "Bash", "arguments": {"command": long}}}
    with RunStore.create(tmp_path / "run", {}) as store:
        record = a_rollout(turns=1, patch=f"+{long}\n", verdict={"reason": "r", "log": long})
        store.add_session(record.session_id, {})
        said = {"role": "assistant", "content": long, "tool_calls": [call]}
        store.add_turn(a_turn(record.session_id, reply=said))
        store.put_rollout(record)
        parts = list(render_rollout(open_rollout(store, record.rollout_id), None, None))
    console = Console(width=80, file=io.StringIO())
    sizes = [len("".join(segment.text for segment in console.render(part))) for part in parts]
    assert max(sizes) < 60 * BLOCK  # of short lines, each as wide as the terminal
    with console.capture() as shown:
        for part in parts:
            console.print(part)
    text = shown.get()
    assert text.count("begin") == text.count("end\n") + text.count("end ") == 4
    assert text.count("a line") == 4 * 4_000
    assert text.count("x") >= 4 * 3 * BLOCK
