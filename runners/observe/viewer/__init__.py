"""Names that the other districts may import."""

from __future__ import annotations

from runners.observe.viewer.filters import KINDS, ONLY, SORTS, RolloutQuery, ViewError, parse_query
from runners.observe.viewer.in_progress import RUNNING, find_in_progress
from runners.observe.viewer.listing import list_rollouts
from runners.observe.viewer.rollout_view import find_attempts, open_rollout
from runners.observe.viewer.search_index import SearchIndex
from runners.observe.viewer.terminal import RolloutList, render_rollout, render_timeline
from runners.observe.viewer.timeline import build_timeline, timeline_to_page
from runners.observe.viewer.wire_view import find_wire, render_wire, wire_to_dict

__all__ = [
    "KINDS",
    "ONLY",
    "RUNNING",
    "SORTS",
    "RolloutList",
    "RolloutQuery",
    "SearchIndex",
    "ViewError",
    "build_timeline",
    "find_attempts",
    "find_in_progress",
    "find_wire",
    "list_rollouts",
    "open_rollout",
    "parse_query",
    "render_rollout",
    "render_timeline",
    "render_wire",
    "timeline_to_page",
    "wire_to_dict",
]
