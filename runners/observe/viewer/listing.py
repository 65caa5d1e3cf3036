"""Lists of rollouts: a page of those that a query selects, their sums, and the groups of each step.

Everything is read from the store's rows as they are now; of a rollout that was retried, the attempt
that counts. Rollouts in progress are a list of their own, with the same columns.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from runners.observe.viewer.filters import DURATION, RolloutQuery, ViewError
from runners.observe.viewer.in_progress import AS_ROLLOUTS, read_in_progress
from runners.observe.viewer.search_text import (
    cut_out,
    match_expression,
    read_rollout_texts,
    read_turn_texts,
)
from runners.records.store import RunStore
from runners.records.text import loads

PAGE = 500
"""The most rollouts of one answer."""
GROUPS = 5000
"""The most groups of one answer."""
_FIELDS = f"""rollout_id, attempt, session_id, step, split, group_index AS "group", member,
task_id AS task, code, stage, reward AS score, solved, advantage, turns,
sampled_tokens AS sampled, trained_tokens AS trained, {DURATION} AS duration,
json_extract(extra, '$.session.branches') AS kinds"""
_HITS = """hit AS MATERIALIZED (
    SELECT session_id, min(docid) AS docid, count(*) AS hits
    FROM search.words JOIN search.doc ON docid = words.rowid
    WHERE words MATCH :match GROUP BY session_id)"""
_SUMS = """SELECT count(*), count(reward), avg(reward), count(solved), coalesce(sum(solved), 0),
coalesce(sum(sampled_tokens), 0), coalesce(sum(trained_tokens), 0) """


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of the rollouts that a query selects."""

    rows: list[dict[str, Any]]
    sums: dict[str, Any]
    """Over all that are selected: rollouts, rewarded, reward (mean), graded, solved, sampled,
    trained (tokens).
    """


def list_rollouts(store: RunStore, query: RolloutQuery, offset: int, limit: int) -> Listing:
    """Return the rollouts from ``offset`` on, at most ``limit`` (and ``PAGE``) of them.

    A query with a search needs the index attached to the store. Raises ViewError.
    """
    tables, chosen, values = _choose(store, query)
    found = ", docid, hits" if query.search else ""
    names = ("rollouts", "rewarded", "reward", "graded", "solved", "sampled", "trained")
    sums = store.database.rows(f"{tables}{_SUMS}{chosen}", values)[0]
    rows = store.database.rows(
        f"{tables}SELECT {_FIELDS}{found} {chosen} "
        f"ORDER BY {query.order()} LIMIT :limit OFFSET :offset",
        values | {"limit": max(0, min(limit, PAGE)), "offset": max(0, offset)},
    )
    return Listing(
        [_read_row(store, row, query.search) for row in rows], dict(zip(names, sums, strict=True))
    )


def find_place(store: RunStore, query: RolloutQuery, rollout_id: str) -> int | None:
    """Return how many rollouts come before one in a query's list; None: it is not in it.

    A query with a search needs the index attached to the store. Raises ViewError.
    """
    tables, chosen, values = _choose(store, query)
    places = f"SELECT rollout_id, row_number() OVER (ORDER BY {query.order()}) AS place {chosen}"
    found = store.database.rows(
        f"{tables}SELECT place - 1 FROM ({places}) WHERE rollout_id = :rollout_id",
        values | {"rollout_id": rollout_id},
    )
    return found[0][0] if found else None


def _choose(store: RunStore, query: RolloutQuery) -> tuple[str, str, dict[str, Any]]:
    """Return the head of a statement, its FROM and WHERE, and its parameters; raises ViewError."""
    where, values = query.conditions()
    tables, source = [], "FROM rollout"
    if query.running:
        tables.append(AS_ROLLOUTS)
        values["in_progress"] = read_in_progress(store)
    if query.search:
        tables.append(_HITS)
        source = "FROM rollout JOIN hit USING (session_id)"
        values["match"] = match_expression(query.search)
        if not values["match"]:
            raise ViewError(f"search {query.search}: nothing in it is a word")
    head = f"WITH {', '.join(tables)} " if tables else ""
    return head, f"{source} WHERE {where}", values


def list_groups(store: RunStore) -> list[dict[str, Any]]:
    """Return each group of each step, newest step first, at most ``GROUPS`` of them.

    Those of an evaluation are its tasks.
    """
    rows = store.query(
        'SELECT step, split, group_index AS "group", min(task_id) AS task, count(*) AS rollouts, '
        "count(solved) AS graded, coalesce(sum(solved), 0) AS solved, avg(reward) AS reward "
        "FROM rollout WHERE counts GROUP BY step, split, group_index "
        f"ORDER BY step DESC, split DESC, group_index LIMIT {GROUPS}"
    )
    return [dict(row) for row in rows]


def list_choices(store: RunStore) -> dict[str, Any]:
    """Return the values that filters can have in this run, each with its number of rollouts."""
    choices: dict[str, Any] = {}
    for name, column in (("outcome", "code"), ("step", "step"), ("only", "split")):
        choices[name] = {
            str(value): count
            for value, count in store.query(
                f"SELECT {column}, count(*) FROM rollout WHERE counts GROUP BY 1 ORDER BY 1"
            )
        }
    return choices


def _read_row(store: RunStore, row: sqlite3.Row, search: str) -> dict[str, Any]:
    """Return a rollout's line of the list: with a search also the first hit."""
    line = dict(row)
    line["solved"] = None if line["solved"] is None else bool(line["solved"])
    line["kinds"] = loads(line["kinds"]) if line["kinds"] else {}
    if search:
        line["hit"] = _read_hit(store, line, line.pop("docid"), search)
    return line


def _read_hit(store: RunStore, line: dict[str, Any], docid: int, search: str) -> dict[str, Any]:
    """Return where a search was found first: turn (None: patch or tests), field and text."""
    turn = store.query("SELECT turn FROM search.doc WHERE docid = ?", (docid,))[0][0]
    if turn is None:
        # by the columns of an index: there is none of sessions
        query = (
            "SELECT session_id, task_id, patch, verdict FROM rollout "
            "WHERE rollout_id = ? AND attempt = ?"
        )
        found = store.query(query, (line["rollout_id"], line["attempt"]))
        texts = [read_rollout_texts(*row) for row in found]
    else:
        query = "SELECT request, reply FROM turn WHERE session_id = ? AND turn_index = ?"
        texts = [read_turn_texts(*row) for row in store.query(query, (line["session_id"], turn))]
    field, text = cut_out(texts[0] if texts else {}, search)
    return {"turn": turn, "field": field, "text": text}
