"""Answers the page's questions from one run's store; belongs to the thread that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runners.observe.export.contract import Decode
from runners.observe.export.decoding import find_decode
from runners.observe.figures.swimlane import read_step
from runners.observe.report.report_data import read_document
from runners.observe.viewer.filters import RolloutQuery, ViewError, parse_query
from runners.observe.viewer.in_progress import describe_progress, find_in_progress
from runners.observe.viewer.listing import find_place, list_choices, list_groups, list_rollouts
from runners.observe.viewer.page_data import build_document, build_tokens
from runners.observe.viewer.rollout_view import ViewedRollout, open_rollout
from runners.observe.viewer.search_index import SearchIndex
from runners.observe.viewer.timeline import build_timeline, timeline_to_page
from runners.observe.viewer.wire_view import find_wire, wire_to_page
from runners.records.store import RunStore

ATTEMPTS = 500
"""Attempts of a step that are drawn over time."""
Given = Mapping[str, list[str]]
"""The values of a request's query by name."""


class PageReader:
    """One run, opened to be read."""

    def __init__(self, run_dir: Path) -> None:
        """Open the run; raises StoreError."""
        self._store = RunStore.open(run_dir, read_only=True)
        self._run_dir = run_dir
        self._decode: Decode | None = None
        self._knows_decode = False
        self._searchable = False
        self._viewed: tuple[tuple[str, int | None, int, bool], ViewedRollout] | None = None
        """The rollout that was asked for last, whose tokens are asked for turn by turn."""
        self._choices: tuple[int, dict[str, Any]] = (-1, {})

    def read_run(self, given: Given) -> dict[str, Any]:
        """Return the run's name and state, the values that filters can have, a number that changes
        when the store does, and the number of rollouts in progress.

        ``given``: ``watch`` names a rollout whose progress is returned, too.
        """
        version = self._version()
        watched, found = next(iter(given.get("watch", ())), ""), find_in_progress(self._store)
        if self._choices[0] != version:
            self._choices = version, list_choices(self._store)
        return {
            "name": self._run_dir.resolve().name,
            "state": self._store.state().seen,
            "version": version,
            "choices": self._choices[1],
            "in_progress": len(found),
            "watched": describe_progress(self._store, watched, found),
        }

    def read_groups(self) -> dict[str, Any]:
        """Return the groups of each step."""
        return {"groups": list_groups(self._store)}

    def read_list(self, given: Given) -> dict[str, Any]:
        """Return a page of rollouts; raises ViewError."""
        names = {name: values for name, values in given.items() if name not in ("offset", "limit")}
        listing = list_rollouts(
            self._store,
            self._query(names),
            _number(given, "offset", 0),
            _number(given, "limit", 100),
        )
        return {"rows": listing.rows, "sums": listing.sums}

    def read_place(self, rollout_id: str, given: Given) -> dict[str, Any]:
        """Return a rollout's index in the list that a query selects; raises ViewError."""
        return {"place": find_place(self._store, self._query(given), rollout_id)}

    def read_rollout(self, rollout_id: str, given: Given) -> dict[str, Any]:
        """Return one rollout without its tokens; raises ViewError."""
        return build_document(self._view(rollout_id, given))

    def read_tokens(self, rollout_id: str, given: Given) -> dict[str, Any]:
        """Return a page of the tokens of one turn; raises ViewError."""
        if not self._knows_decode:
            self._decode, self._knows_decode = find_decode(self._store), True
        view = self._view(rollout_id, given)
        return build_tokens(
            view,
            _number(given, "turn", 0) or 0,
            _number(given, "from", 0) or 0,
            self._decode,
            self._store.routing_shape(),
            self._store.agreements(view.record.session_id),
        )

    def read_wire(self, rollout_id: str, given: Given) -> dict[str, Any]:
        """Return a turn's request and answer as they were on the wire; raises ViewError."""
        turn, attempt = _number(given, "turn", 0), _number(given, "attempt", None)
        return wire_to_page(find_wire(self._store, rollout_id, turn, attempt))

    def read_timeline(self, rollout_id: str, given: Given) -> dict[str, Any]:
        """Return what happened when in one rollout; raises ViewError."""
        return timeline_to_page(build_timeline(self._store, self._view(rollout_id, given)))

    def read_step(self, given: Given) -> dict[str, Any]:
        """Return the attempts of a step (``split``, ``step``) over time; raises ViewError."""
        split = next(iter(given.get("split", ())), "train")
        return asdict(read_step(self._store, split, _number(given, "step", 0), ATTEMPTS))

    def read_report(self) -> dict[str, Any]:
        """Return the run's report, as ``agentrl report`` writes it."""
        return read_document(self._store).to_dict()

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _query(self, given: Given) -> RolloutQuery:
        query = parse_query(given)
        if query.search and not self._searchable:
            SearchIndex(self._run_dir).attach(self._store)
            self._searchable = True
        return query

    def _view(self, rollout_id: str, given: Given) -> ViewedRollout:
        attempt = _number(given, "attempt", None)
        # a run in which nothing is written any more may have lost its driver
        key = rollout_id, attempt, self._version(), self._store.state().driven
        if self._viewed is None or self._viewed[0] != key:
            self._viewed = key, open_rollout(self._store, rollout_id, attempt)
        return self._viewed[1]

    def _version(self) -> int:
        version: int = self._store.query("PRAGMA main.data_version")[0][0]
        return version


def _number(given: Given, name: str, missing: int | None) -> Any:
    """Return a whole number of a request, from 0 to 10⁹; raises ViewError."""
    text = next(iter(given.get(name, ())), "")
    if not text:
        return missing
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ViewError(f"{name} {text}: give a whole number")
    return int(text)
