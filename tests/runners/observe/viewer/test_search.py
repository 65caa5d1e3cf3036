from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runners.observe.viewer.filters import ViewError, parse_query
from runners.observe.viewer.listing import list_rollouts
from runners.observe.viewer.search_index import SearchIndex
from runners.observe.viewer.search_text import LENGTH, cut_out, match_expression, read_turn_texts
from runners.records.store.run_store import RunStore
from tests.fakes.records import a_rollout, write_session
from tests.runners.observe.viewer.conftest import add_branched


def hits(store: RunStore, search: str) -> list[tuple[str, int | None, str]]:
    """Return rollout, turn and field of each first hit."""
    rows = list_rollouts(store, parse_query({"search": search}), 0, 100).rows
    return [(row["rollout_id"], row["hit"]["turn"], row["hit"]["field"]) for row in rows]


BRANCHED = "train-000002-000-00"


def test_messages_calls_patches_and_logs_are_found(store: RunStore) -> None:
    assert hits(store, "explorer") == [(BRANCHED, 1, "said")]
    assert hits(store, '"cat sum.py"') == [(BRANCHED, 2, "tools")]
    assert hits(store, "patch:cloud") == [(BRANCHED, None, "patch")]
    assert hits(store, "KeyError grape") == [("eval-000001-003-00", None, "tests")]
    assert hits(store, "said:KeyError") == []
    assert hits(store, BRANCHED) == [(BRANCHED, None, "said")]
    assert hits(store, '"held[1]"') == [("eval-000001-003-00", None, "said")]
    assert len(hits(store, "unic")) == 5, "a word may go on, and accents do not matter"


@pytest.mark.parametrize(
    "search",
    [
        '"',
        "NEAR(zz b)",
        "zz OR b",
        "col:x",
        "-zz",
        "^zz",
        "zz AND NOT",
        "patch:",
        "*",
        'zz"b',
        "'; DROP",
    ],
)
def test_no_character_of_a_search_is_an_operator(store: RunStore, search: str) -> None:
    if match_expression(search):
        assert hits(store, search) == []
    else:
        with pytest.raises(ViewError, match="nothing in it is a word"):
            hits(store, search)


@given(st.text(st.characters(), max_size=40))
@example("a\x00b \ud800")
def test_any_text_can_be_searched(text: str) -> None:
    import sqlite3

    query = parse_query({"search": text})
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE words USING fts5(said, tools, patch, tests, content='')")
    if expression := match_expression(query.search):
        db.execute("SELECT rowid FROM words WHERE words MATCH ?", (expression,)).fetchall()
    db.close()


def test_the_index_grows_with_the_run_and_leaves_the_store_as_it_was(
    run_dir: Path, cache: Path
) -> None:
    before = {path.name: path.read_bytes() for path in run_dir.iterdir() if path.is_file()}
    index = SearchIndex(run_dir)
    assert index.path.is_relative_to(cache)
    first = index.update()
    assert first.done == first.total == 18
    assert {name: (run_dir / name).read_bytes() for name in before} == before
    with RunStore.open(run_dir) as writer, RunStore.open(run_dir, read_only=True) as store:
        index.attach(store)
        assert [name for name, *_ in hits(store, "explorer")] == [BRANCHED]
        add_branched(writer, "train-000002-000-01")
        unfinished = a_rollout("train-000002-000-02", counts=False, patch="+unfinished\n")
        write_session(writer, unfinished.session_id, 1)
        writer.put_rollout(unfinished)
        index.update()
        assert [name[-2:] for name, *_ in hits(store, "explorer")] == ["00", "01"]
        assert hits(store, "unfinished") == []
        verdict = {"log": "graded late"}
        final = a_rollout("train-000002-000-02", patch="+unfinished\n", verdict=verdict)
        writer.put_rollout(final)
        index.update()
        assert hits(store, "unfinished") == [("train-000002-000-02", None, "patch")]
        assert hits(store, "tests:graded") == [("train-000002-000-02", None, "tests")]


def test_the_index_of_another_run_in_the_same_place_is_made_anew(run_dir: Path) -> None:
    SearchIndex(run_dir).update()
    with RunStore.open(run_dir) as writer:
        writer.database.execute("UPDATE run SET created_at = created_at + 1")
        add_branched(writer, "train-000002-000-01")
    assert SearchIndex(run_dir).update().done == 26


def test_a_damaged_index_is_made_anew(run_dir: Path) -> None:
    index = SearchIndex(run_dir)
    index.update()
    index.path.write_bytes(b"nothing of a database" * 100)
    assert index.update().done == 18


def test_an_index_that_another_program_holds_is_kept(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = SearchIndex(run_dir)
    index.update()
    monkeypatch.setattr("runners.observe.viewer.search_index.BUSY_S", 0.01)
    with closing(sqlite3.connect(index.path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        before = index.path.stat().st_ino
        with pytest.raises(ViewError, match="locked"):
            index.update()
        assert index.path.stat().st_ino == before
    assert index.update().done == 18


def test_a_cache_that_cannot_be_written_is_an_error_with_its_fix(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ViewError, match="XDG_CACHE_HOME"):
        SearchIndex(run_dir)


def test_the_text_of_a_policy_is_bounded() -> None:
    reply = {"role": "assistant", "content": "x" * (2 * LENGTH)}
    texts = read_turn_texts(
        json.dumps({"messages": [None, {"tool_calls": ["odd"]}]}), json.dumps(reply)
    )
    assert (len(texts["said"]), texts["tools"]) == (LENGTH, "odd")


def test_a_hit_is_shown_with_the_text_around_it() -> None:
    texts = {"said": "", "tools": "a" * 100 + " return\tcloud\x1b(apple) " + "b" * 100}
    field, text = cut_out(texts, 'tools:"return cloud"')
    assert field == "tools"
    assert "return cloud\ufffd(apple)" in text
    assert len(text) < 150
