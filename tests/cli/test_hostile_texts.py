"""Messages and JSON documents are complete, whatever characters errors, paths and values have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.invocation import Invocation, print_json, report_error
from cli.tables import render_comparison
from conf.compose import compose
from conf.errors import AgentrlError
from runners.campaigns.execution import report_head
from runners.observe.console import report_warning
from tests.cli.conftest import Agentrl
from tests.fakes.hostile import STEERING, TEXTS, Unreadable, exceptions, shown

CONFIG = compose([])

each_text = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
each_exception = pytest.mark.parametrize("error", exceptions().values(), ids=exceptions())


@each_text
def test_errors_and_warnings_are_printed_as_they_are(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report_error(f"<{text}>")
    report_warning(f"<{text}>")
    report_head(CONFIG, Path("runs") / text.replace("\0", ""))
    said = capsys.readouterr().err
    assert STEERING.search(said) is None
    if text.isprintable():
        line = f"<{text}>"
        assert said.count(line if len(line) < 2_000 else line[:1_900]) == 2


@each_exception
def test_an_unexpected_error_has_one_line_a_log_and_exit_code_1(
    error: Exception,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    invocation = Invocation(json=True, run_dir=tmp_path)
    with pytest.raises(SystemExit) as ended:
        invocation.fail(error)
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"error: unexpected {type(error).__name__}: ")
    assert len(err.splitlines()) == 1
    assert json.loads(out)["exit_code"] == 1
    (log,) = tmp_path.glob("agentrl-error-*.log")
    assert log.read_text().strip()


def test_our_error_with_an_unreadable_text_keeps_its_exit_code() -> None:
    class Broken(AgentrlError, Unreadable):
        pass

    code, message = Invocation().classify(Broken())
    assert code == Broken.exit_code
    assert "Broken" in message


@each_text
def test_the_document_is_one_line_of_strict_ascii(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_json({"text": text, "error": Unreadable(), "nan": float("nan")})
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.count("\n") == 1
    document = json.loads(out)
    document["text"].encode()
    assert document["nan"] is None


@each_text
def test_a_sweep_of_any_label_is_compared(text: str) -> None:
    document = {"label": text, "exit_code": 1, "message": text, "run_dir": text}
    label = text[:40] if text.isprintable() else ""
    assert label in shown(render_comparison([document]))


def test_a_directory_that_looks_like_markup_is_shown_as_it_is(agentrl: Agentrl) -> None:
    done = agentrl("run", "--dry-run", 'run.dir="x/[/] [red] :smile:"')
    assert done.code in (0, 3)
    assert "x/[/] [red] :smile:" in done.stdout


def test_a_directory_whose_name_is_not_utf8_is_named_in_the_error(
    agentrl_process: Agentrl,
) -> None:
    done = agentrl_process("status", b"x\xff[/]".decode("utf-8", "surrogateescape"))
    assert done.code == 5
    assert "holds no run" in done.stderr
