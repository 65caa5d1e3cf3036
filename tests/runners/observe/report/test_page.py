"""A report is one file that is written whole, or refused."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from runners.observe.report.page import ReportError, is_quick, write_report
from runners.records.store.run_state import State
from tests.fakes.hostile import TEXTS
from tests.fakes.records import example_run


class Tags(HTMLParser):
    """The elements of a page before its scripts run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.parametrize("text", [*TEXTS.values(), "</title></style></script><script>x</script>"])
def test_the_file_loads_nothing_and_only_its_own_script_runs(tmp_path: Path, text: str) -> None:
    with example_run(tmp_path / "run") as store:
        store.set_state(State.RUNNING)
        store.set_state(State.FAILED, exit_code=1, message=text)
        store.event("retry", {text: text})
    assert is_quick(tmp_path / "run")
    page = write_report(tmp_path / "run").read_text("utf-8")
    tags = Tags(page).tags
    scripts = [given for tag, given in tags if tag == "script"]
    assert scripts == [{"type": "application/json", "class": "document", "id": "document"}, {}]
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in tags}
    assert not {"src", "href"} & {name for _, given in tags for name in given}
    (policy,) = [given["content"] for _, given in tags if "http-equiv" in given]
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    block = re.search(r'id="document">(.*?)</script>', page, re.DOTALL)
    assert block is not None
    assert json.loads(block[1])["status"]["run_dir"] == str(tmp_path / "run")


def test_a_page_that_cannot_be_written_is_refused_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example_run(tmp_path / "run").close()
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match="choose another --out"):
        write_report(tmp_path / "run", tmp_path / "file" / "report.html")
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "folder")
    for folder in (tmp_path / "folder", Path()):
        with pytest.raises(ReportError, match="choose another --out"):
            write_report(tmp_path / "run", folder)
    assert list(tmp_path.rglob("*.partial")) == []
