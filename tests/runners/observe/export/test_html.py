from __future__ import annotations

import base64
import json
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from runners.observe.export.html import NAME, ROWS
from runners.observe.export.page_texts import TEXT
from runners.observe.export.run_dump import RolloutFilter, dump
from runners.records.store.run_store import RunStore
from tests.fakes.browser import needs_chromium, start_browser
from tests.fakes.records import (
    CONFIG,
    a_rollout,
    branched_run,
    branched_turns,
    example_run,
    write_session,
)


class Page(HTMLParser):
    """What a parser makes of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.blocks: dict[str, list[dict[str, Any]]] = {"words": [], "rows": [], "rollout": []}
        self._kind: str | None = None
        self.feed(path.read_text("utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._kind = dict(attrs).get("class") if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._kind is not None:
            packed = self._kind == "rollout"
            text = zlib.decompress(base64.b64decode(data)).decode() if packed else data
            found = json.loads(text)
            self.blocks[self._kind] += found if self._kind == "rows" else [found]
            self._kind = None


def test_a_page_holds_every_rollout_and_loads_nothing(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        dump(store, tmp_path, formats=("html",), decode=lambda ids: f"<{ids}>")
    page = Page(tmp_path / NAME)
    assert [row["rollout_id"][-2:] for row in page.blocks["rows"]] == ["00", "01", "02", "03"]
    assert [whole["outcome"]["code"] for whole in page.blocks["rollout"]][3] == "infra.sandbox_lost"
    assert page.blocks["words"][0]["100"] == "<[100]>"
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    links = [value for name, value in page.attributes if name in ("src", "href")]
    assert links == ["#?show=overview"], "the run's name leads to the overview"
    policy = next(
        value for name, value in page.attributes if name == "content" and "src" in (value or "")
    )
    assert policy is not None
    assert policy.startswith("default-src 'none';")


def test_what_a_tool_printed_stays_text(tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script><!-- <script> ]]> \u2028 &amp;"
    with branched_run(tmp_path / "run<b>") as store:
        rollout_id = "train-000001-00-01"
        write_session(store, f"{rollout_id}-a0", 1)
        record = a_rollout(rollout_id, task_id=hostile, patch=hostile, verdict={hostile: hostile})
        store.put_rollout(record)
        dump(store, tmp_path, formats=("html",), decode=lambda ids: "</script>")
    page = Page(tmp_path / NAME)
    assert page.tags.count("script") == 2 * 2 + 1 + 1
    assert "b" not in page.tags
    first, second = page.blocks["rollout"]
    assert "</script><script>" in first["turns"][3]["sent"][0]["content"]
    assert (second["task"], second["patch"], second["verdict"]) == (
        hostile,
        hostile,
        {hostile: hostile},
    )


def test_a_text_that_a_browser_would_draw_for_minutes_is_cut(tmp_path: Path) -> None:
    with branched_run(tmp_path / "run") as store:
        rollout_id = "train-000001-00-01"
        write_session(store, f"{rollout_id}-a0", 1)
        store.put_rollout(a_rollout(rollout_id, patch="x" * (TEXT + 7)))
        dump(store, tmp_path, formats=("html",))
    patch = Page(tmp_path / NAME).blocks["rollout"][1]["patch"]
    assert patch.startswith("x" * TEXT + "\n… 7 more characters")


def test_a_shared_prefix_is_in_the_page_once(tmp_path: Path) -> None:
    with branched_run(tmp_path / "run") as store:
        dump(store, tmp_path, formats=("html",))
    page = Page(tmp_path / NAME)
    (whole,) = page.blocks["rollout"]
    held = [turn["prompt_new"] + turn["output_ids"] for turn in whole["turns"]]
    turns = branched_turns()
    assert held == [[*turn.prompt_new.tolist(), *turn.output_ids.tolist()] for turn in turns]
    assert page.blocks["words"] == [], "without a tokenizer"
    assert "segments" not in whole


def test_no_rollouts_are_a_page_too(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        dump(store, tmp_path, formats=("html",), selection=RolloutFilter(only="eval"))
    assert Page(tmp_path / NAME).blocks == {"words": [], "rows": [], "rollout": []}


def test_more_rollouts_than_a_block_has_are_all_there(tmp_path: Path) -> None:
    names = [f"train-000001-{number // 8:03}-{number % 8:02}" for number in range(ROWS + 1)]
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for name in names:
            store.put_rollout(a_rollout(name))
        dump(store, tmp_path, formats=("html",))
    page = Page(tmp_path / NAME)
    assert [row["rollout_id"] for row in page.blocks["rows"]] == names
    assert page.tags.count("script") == 2 + 1 + len(names)


@pytest.mark.integration
@needs_chromium
async def test_a_browser_shows_the_final_branch_and_runs_no_tool_output(tmp_path: Path) -> None:
    with branched_run(tmp_path / "run") as store:
        dump(store, tmp_path, formats=("html",), decode=lambda ids: f"w{ids[0]} ")
    async with start_browser(tmp_path) as browser:
        await browser.open(f"{(tmp_path / NAME).as_uri()}#train-000001-00-00")
        await browser.until("document.querySelectorAll('#tab .message').length > 2")
        assert "6 branches" in await browser.text("#main")
        await browser.run("go({ view: { chain: 2 } })")
        await browser.until("document.body.innerText.includes('You explore.')")
        assert "</script><script>alert(1)</script>" in await browser.text("#tab")
        await browser.press("2")
        await browser.until("document.querySelectorAll('.tokens .sampled').length > 2")
        assert browser.complaints == []
        assert not [each for each in browser.requests if not each.startswith(("file:", "about:"))]


def test_a_long_session_is_decoded_token_by_token_once(tmp_path: Path) -> None:
    asked: list[int] = []

    def decode(ids: Any) -> str:
        asked.append(len(ids))
        return "x"

    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for member in range(3):
            record = a_rollout(f"train-000001-00-{member:02}")
            write_session(store, record.session_id, 4)
            store.put_rollout(record)
        dump(store, tmp_path, formats=("html",), decode=decode)
    assert asked.count(1) == len({1, 2, 3, 4, 5, 7, 100, 101, 102, 103})
