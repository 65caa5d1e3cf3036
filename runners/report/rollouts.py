"""Single rollouts in a report: lanes of some steps, the slowest, what failed. Branches and tokens,
and the configuration.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from urllib.parse import quote
from xml.etree.ElementTree import Element

from runners.export.html import NAME
from runners.observe.swimlane import AttemptSpans
from runners.report.element import Child, make
from runners.report.facts import Facts
from runners.report.figures import UNKNOWN, count, seconds, share
from runners.report.overview import STAGES
from runners.report.swimlane import draw_swimlane
from runners.report.table import folded, section, table
from runners.store.json_text import dumps
from runners.trajectory.record import RolloutRecord

_FAILURES = 20
_DUMP = Path("dump") / NAME

_EVENTS = {
    "calibrated": "a task was tried with its reference patch and with none",
    "fault": "a fault that the plan made",
    "metrics_failed": "metrics.jsonl could not be written; made up for later",
    "reaped": "what a dead driver left was ended",
    "regraded": "a stored patch was graded again",
    "retry": "a rollout began again in a fresh sandbox",
    "routing_refused": "a sample whose routing could not be true was masked",
    "service_gone": "a process that the run needs ended",
    "teardown_failed": "a session or sandbox could not be closed",
    "unbuilt": "a rollout's samples could not be made; its reward still counts",
    "write_failed": "a record was written at the second try",
}
_BRANCHES = {
    "main": "the task itself",
    "subagent": "a part of it, given to a sub-agent",
    "compaction": "the summary that replaces a history",
    "side": "a title, a topic, a probe",
}
_DROPPED = {
    "fanout/dropped_long": "longer than fanout.max_segment_tokens",
    "fanout/dropped_many": "beyond fanout.max_segments",
    "fanout/untrained_side": "side requests (fanout.train_side=false)",
    "fanout/untrained_unfinished": "of unfinished rollouts (trainer.train_unfinished=false)",
}


class Links:
    """Links to rollouts in the page that ``dump-trajectories`` makes."""

    def __init__(self, run_dir: Path, page: Path) -> None:
        """``page``: where the report will lie."""
        self._dump = os.path.relpath((run_dir / _DUMP).resolve(), page.resolve().parent)
        self.command = f"agentrl dump-trajectories {shlex.quote(str(run_dir))} --format html"

    def to(self, rollout_id: str) -> Element:
        """Return a link to a rollout."""
        return make("a", make("code", rollout_id), href=f"{quote(self._dump)}#{quote(rollout_id)}")


def branches(facts: Facts) -> Element | None:
    """Return the kinds of branches, what became of their tokens, and where chains broke."""
    if not facts.branches:
        return None
    whole = sum(branch.sampled for branch in facts.branches)
    kinds = table(
        ["branch", "threads", "turns", "sampled tokens", "", "what it is for"],
        [
            [
                make("code", branch.kind),
                count(branch.threads),
                count(branch.turns),
                count(branch.sampled),
                share(branch.sampled / whole) if whole else UNKNOWN,
                _BRANCHES.get(branch.kind, ""),
            ]
            for branch in facts.branches
        ],
        numbers=range(1, 5),
    )
    account = None if facts.status.benchmark else _account(facts)
    return section("Branches and tokens", kinds, account, _breaks(facts))


def _account(facts: Facts) -> Element:
    tokens = facts.sums.tokens
    rows: list[list[Child]] = [
        ["sampled by graded training rollouts", count(tokens["graded"]), ""],
        ["trained", count(tokens["trained"]), _of(tokens["trained"], tokens["graded"])],
        ["masked: rollouts without a grade", count(tokens["ungraded"]), ""],
        ["sampled by attempts that another replaced", count(tokens["replaced"]), ""],
        ["sampled by evaluations", count(tokens["evaluation"]), ""],
    ]
    for key, why in _DROPPED.items():
        number = sum(step.get(key) or 0 for step in facts.steps)
        if number:
            rows.append([f"segments not trained: {why}", count(number), ""])
    return table(["tokens", "count", "of those graded"], rows, numbers=(1, 2))


def _of(part: int, whole: int) -> str:
    return share(part / whole) if whole else UNKNOWN


def _breaks(facts: Facts) -> Element:
    if not facts.breaks:
        return make(
            "p", "✓ No chain broke: every history was continued token by token.", class_="good"
        )
    return table(
        ["chains that end in a break", "count", "the most frequent reason", "for example"],
        [
            [
                make("code", each.kind),
                count(each.count),
                each.example,
                make("code", each.session_id),
            ]
            for each in facts.breaks
        ],
        numbers=(1,),
    )


def rollouts(
    facts: Facts, steps: list[tuple[str, list[AttemptSpans]]], links: Links
) -> Element | None:
    """Return lanes of some steps (title, attempts) and the slowest rollouts."""
    slowest = facts.sums.slowest
    if not slowest:
        return None
    lanes = [folded(title, draw_swimlane(attempts)) for title, attempts in steps if attempts]
    if lanes:
        lanes[0].set("open", "open")
    note = make("p", "Links open what ", make("code", links.command), " makes.", class_="dim small")
    return section("Rollouts", *lanes, make("h3", "The slowest"), note, _slowest(slowest, links))


def _slowest(records: list[RolloutRecord], links: Links) -> Element:
    return table(
        ["rollout", "task", "total", *STAGES, "turns", "tokens", "outcome"],
        [
            [
                links.to(record.rollout_id),
                record.task_id,
                seconds(record.timings.get("total")),
                *(seconds(record.timings.get(stage)) for stage in STAGES),
                count(record.turns),
                count(record.sampled_tokens),
                make("code", record.outcome.code.value),
            ]
            for record in records
        ],
        numbers=range(2, 5 + len(STAGES)),
    )


def failures(facts: Facts, links: Links) -> Element:
    """Return attempts without a grade with their messages, and other notable things."""
    found = sorted(facts.sums.failures.values(), key=lambda failure: -failure.count)
    parts: list[Child] = []
    if found:
        parts.append(
            table(
                ["outcome", "attempts", "made good", "stage", "message", "first"],
                [
                    [
                        make("code", failure.code),
                        count(failure.count),
                        count(failure.made_good),
                        failure.first.outcome.stage.value,
                        make("span", failure.message or UNKNOWN, class_="message"),
                        links.to(failure.first.rollout_id),
                    ]
                    for failure in found[:_FAILURES]
                ],
                numbers=(1, 2),
            )
        )
        if len(found) > _FAILURES:
            parts.append(make("p", f"{len(found) - _FAILURES:,} more kinds.", class_="dim"))
    else:
        parts.append(make("p", "✓ No attempt failed.", class_="good"))
    return section("Failures", *parts, _events(facts), _left(facts))


def _events(facts: Facts) -> Element | None:
    kinds: dict[str, list[str]] = {}
    for event in facts.events:
        kinds.setdefault(event.kind, []).append(
            ", ".join(f"{key} {value}" for key, value in event.data.items())
        )
    if not kinds:
        return None
    rows: list[list[Child]] = [
        [
            make("code", kind),
            count(len(said)),
            _EVENTS.get(kind, ""),
            make("span", said[-1], class_="message"),
        ]
        for kind, said in sorted(kinds.items())
    ]
    return table(["event", "count", "what it means", "the last one"], rows, numbers=(1,))


def _left(facts: Facts) -> Element | None:
    """Return what was diagnosed, and what outlived its attempt."""
    lines = [make("li", "diagnosis: ", make("code", path)) for path in facts.status.diagnoses]
    lines += [
        make("li", f"left behind: {leak.kind} ", make("code", leak.name))
        for leak in facts.status.leaks
    ]
    return make("ul", *lines) if lines else None


def configuration(facts: Facts, text: str) -> Element:
    """Return what differs from the defaults; the whole as JSON (``text``), folded."""
    file = shlex.quote(f"{facts.status.run_dir}/config.json")
    changed: Child = make("p", "Every key has its default.", class_="dim")
    if facts.changes:
        changed = table(
            ["key", "value"],
            [
                [make("code", key), make("code", dumps(value), class_="message")]
                for key, value in facts.changes.items()
            ],
        )
    again = make("p", "Once more: ", make("code", f"agentrl run --config {file}"))
    whole = folded("The whole configuration", make("pre", text))
    return section("Configuration", changed, None if facts.status.benchmark else again, whole)
