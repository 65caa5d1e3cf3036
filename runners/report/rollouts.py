"""Builds the sections of a report about single rollouts: swimlanes, the slowest, failures; also
branches and tokens, and the configuration.
"""

from __future__ import annotations

import shlex
from collections import Counter
from xml.etree.ElementTree import Element

from runners.observe.swimlane import AttemptSpans
from runners.report.element import Child, make
from runners.report.links import Links
from runners.report.number_format import UNKNOWN, format_count, format_seconds, format_share
from runners.report.overview import STAGES
from runners.report.report_data import ReportData
from runners.report.swimlane import draw_swimlane
from runners.report.table import make_details, make_section, make_table
from runners.store.json_text import dumps
from runners.trajectory.record import RolloutRecord

_FAILURES = 20

_EVENTS = {
    "calibrated": "a task was graded with its reference patch and with none",
    "fault": "a fault that the fault plan injected",
    "metrics_failed": "metrics.jsonl could not be written; it is rewritten later",
    "reaped": "resources that a dead driver left were removed",
    "regraded": "a stored patch was graded again",
    "retry": "a rollout was retried in a fresh sandbox",
    "routing_refused": "a sample with impossible routing was masked",
    "sink_failed": "a service that gets steps or spans failed (a tracker, a collector, a plug-in)",
    "service_gone": "a process that the run needs ended",
    "teardown_failed": "a session or sandbox could not be closed",
    "unbuilt": "a rollout's samples could not be built; its reward still counts",
    "write_failed": "a record was written at the second attempt",
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


def build_branches(facts: ReportData) -> Element | None:
    """Return the kinds of branches, the use of their tokens, and the breaks of chains."""
    if not facts.branches:
        return None
    whole = sum(branch.sampled for branch in facts.branches)
    kinds = make_table(
        ["branch", "threads", "turns", "sampled tokens", "", "what it is for"],
        [
            [
                make("code", branch.kind),
                format_count(branch.threads),
                format_count(branch.turns),
                format_count(branch.sampled),
                format_share(branch.sampled / whole) if whole else UNKNOWN,
                _BRANCHES.get(branch.kind, ""),
            ]
            for branch in facts.branches
        ],
        numbers=range(1, 5),
    )
    use = None if facts.status.benchmark else _token_use(facts)
    return make_section("Branches and tokens", kinds, use, _breaks(facts))


def _token_use(facts: ReportData) -> Element:
    tokens, counts = facts.sums.tokens, facts.status.tokens
    loss, trained = counts.in_loss or 0, counts.trained
    rows: list[list[Child]] = [
        ["sampled by graded rollouts of finished steps", format_count(counts.sampled), ""],
        ["averaged in the loss", format_count(loss), _of(loss, counts.sampled)],
        ["trained: with a gradient", format_count(trained), _of(trained, counts.sampled)],
        ["masked: rollouts without a grade", format_count(tokens["ungraded"]), ""],
        ["sampled by attempts that were retried", format_count(tokens["replaced"]), ""],
        ["sampled by evaluations", format_count(tokens["evaluation"]), ""],
    ]
    for key, why in _DROPPED.items():
        number = sum(step.get(key) or 0 for step in facts.steps)
        if number:
            rows.append([f"segments not trained: {why}", format_count(number), ""])
    return make_table(["tokens", "count", "of those graded"], rows, numbers=(1, 2))


def _of(part: int, whole: int) -> str:
    return format_share(part / whole) if whole else UNKNOWN


def _breaks(facts: ReportData) -> Element:
    if not facts.breaks:
        return make(
            "p", "✓ No chain broke: every history was continued token by token.", class_="good"
        )
    return make_table(
        ["chains that end in a break", "count", "the most frequent reason", "for example"],
        [
            [
                make("code", each.kind),
                format_count(each.count),
                make("span", each.example, class_="message"),
                make("code", each.session_id),
            ]
            for each in facts.breaks
        ],
        numbers=(1,),
    )


def build_rollouts(
    facts: ReportData, steps: list[tuple[str, list[AttemptSpans]]], links: Links
) -> Element | None:
    """Return the swimlanes of some steps (title, attempts) and the slowest rollouts."""
    slowest = facts.sums.slowest
    if not slowest:
        return None
    drawn = [(title, draw_swimlane(attempts)) for title, attempts in steps if attempts]
    lanes = [make_details(*each, opened=not place) for place, each in enumerate(drawn)]
    return make_section("Rollouts", *lanes, make("h3", "The slowest"), _slowest(slowest, links))


def _slowest(records: list[RolloutRecord], links: Links) -> Element:
    return make_table(
        ["rollout", "task", "total", *STAGES, "turns", "tokens", "outcome"],
        [
            [
                links.to(record.rollout_id),
                make("span", record.task_id, class_="name"),
                format_seconds(record.timings.get("total")),
                *(format_seconds(record.timings.get(stage)) for stage in STAGES),
                format_count(record.turns),
                format_count(record.sampled_tokens),
                make("code", record.outcome.code.value),
            ]
            for record in records
        ],
        numbers=range(2, 5 + len(STAGES)),
    )


def build_tampering(facts: ReportData, links: Links) -> Element | None:
    """Return the rollouts whose patch tampered with its grading, with the evidence."""
    found = facts.sums.tampered
    if not found:
        return None
    rows: list[list[Child]] = [
        [
            links.to(record.rollout_id),
            str(record.step),
            make("span", record.task_id, class_="name"),
            make("span", record.outcome.message, class_="message"),
        ]
        for record in found[-_FAILURES:]
    ]
    steps = Counter(record.step for record in found if record.split == "train")
    most = ", ".join(f"{count:,} in step {step}" for step, count in steps.most_common(5))
    count = f"{len(found):,} rollouts; they count as unsolved. "
    note = make("p", count + (f"In training, most: {most}." if most else ""), class_="dim")
    return make_section(
        "Tampering", note, make_table(["rollout", "step", "task", "evidence"], rows, numbers=(1,))
    )


def build_failures(facts: ReportData, links: Links) -> Element:
    """Return the attempts without a grade and their messages, events, diagnoses and leaks."""
    found = sorted(facts.sums.failures.values(), key=lambda failure: -failure.count)
    parts: list[Child] = []
    if found:
        parts.append(
            make_table(
                ["outcome", "attempts", "retried", "stage", "message", "first"],
                [
                    [
                        make("code", failure.code),
                        format_count(failure.count),
                        format_count(failure.retried),
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
    return make_section("Failures", *parts, _events(facts), _leaks(facts))


def _events(facts: ReportData) -> Element | None:
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
            format_count(len(texts)),
            _EVENTS.get(kind, ""),
            make("span", texts[-1], class_="message"),
        ]
        for kind, texts in sorted(kinds.items())
    ]
    return make_table(["event", "count", "what it means", "the last one"], rows, numbers=(1,))


def _leaks(facts: ReportData) -> Element | None:
    """Return the newest diagnoses, and resources that outlived their attempt."""
    lines = [make("li", "diagnosis: ", make("code", path)) for path in facts.status.diagnoses]
    lines += [
        make("li", f"left behind: {leak.kind} ", make("code", leak.name))
        for leak in facts.status.leaks
    ]
    return make("ul", *lines) if lines else None


def build_configuration(facts: ReportData, text: str) -> Element:
    """Return the keys that differ from the defaults, and the whole configuration (``text``)."""
    file = shlex.quote(f"{facts.status.run_dir}/config.json")
    changed: Child = make("p", "Every key has its default.", class_="dim")
    if facts.changes:
        changed = make_table(
            ["key", "value"],
            [
                [make("code", key), make("code", dumps(value), class_="message")]
                for key, value in facts.changes.items()
            ],
        )
    again = make("p", "Run it again: ", make("code", f"agentrl run --config {file}"))
    whole = make_details("The whole configuration", make("pre", text))
    return make_section("Configuration", changed, None if facts.status.benchmark else again, whole)
