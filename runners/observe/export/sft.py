"""Writes ``sft/``: chains of graded rollouts as examples for supervised fine-tuning.

``messages.jsonl`` has a conversation per line and ``tokens.jsonl`` the same chain's exact tokens,
with the columns that TRL's SFTTrainer and ``datasets`` take: ``messages`` and ``tools``, or
``input_ids`` and ``assistant_masks``. A line is a chain of ``runners/records/graph.py``, those
of sub-agents and summaries included. Left out are side requests, and rollouts that have no reward.

Invariant: over all lines each sampled token, and each reply, is marked at most once; what a chain
shares with another is context in one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from conf.exact_tokens import describe_inexactness
from runners.observe.export.contract import AddRollout, ExportedRollout, ExportedRun
from runners.observe.export.conversation import Message, latest_tools
from runners.observe.export.derive import Part
from runners.observe.export.jsonl import find_faults
from runners.observe.export.trajectory import Mask
from runners.records.record import Segment, SegmentKind, Turn
from runners.records.text import dumps

FOLDER = "sft"
MESSAGES = "messages.jsonl"
TOKENS = "tokens.jsonl"


class SftLine(Part):
    """Origin of an example."""

    id: str
    """Rollout and segment, as they are named in ``trajectories.jsonl``."""
    run: str
    task: str
    step: int
    split: str
    """"train", or "eval": a task that may be held out from training."""
    kind: SegmentKind
    thread: str
    """Speaker: "main", or the agent program's id of a sub-agent."""
    outcome: str
    reward: float
    solved: bool | None
    fingerprint: str
    """The same for two lines with the same tokens and mask; without token ids, with the same
    messages.
    """


class MessagesLine(SftLine):
    """An example as a conversation."""

    messages: list[dict[str, Any]]
    """In OpenAI's chat form, with the arguments of tool calls as objects, as chat templates take
    them. ``weight`` is 1 on replies to train; 0 on those that another line has, that the agent
    program wrote, or that the limit of tokens cut off.
    """
    tools: list[dict[str, Any]]
    """Functions that the policy was offered."""


class TokensLine(SftLine):
    """An example as tokens."""

    input_ids: list[int]
    """Exactly the ids that the policy saw and sampled."""
    assistant_masks: list[Mask]
    """1 on the tokens that were sampled in this chain."""


LINES: dict[str, type[SftLine]] = {MESSAGES: MessagesLine, TOKENS: TokensLine}


@contextmanager
def write_sft(folder: Path, run: ExportedRun) -> Iterator[AddRollout]:
    """Write a line per chain into both files; without token ids there are only messages."""
    place = folder / FOLDER
    place.mkdir()
    names = [MESSAGES] if describe_inexactness(run.config) else [MESSAGES, TOKENS]
    files = {name: (place / name).open("wb") for name in names}
    seen: set[bytes] = set()
    """Fingerprints of what was written, if only new lines are wanted: 16 bytes each."""

    def add(rollout: ExportedRollout) -> None:
        if rollout.record.reward is None or not rollout.record.outcome.meaning.trained:
            return
        for chain in rollout.chains:
            lines = {} if chain.kind == "side" else build_lines(rollout, chain, run)
            if run.unique and lines:
                fingerprint = bytes.fromhex(next(iter(lines.values()))["fingerprint"])
                if fingerprint in seen:
                    continue
                seen.add(fingerprint)
            for name, line in lines.items():
                files[name].write(dumps(line).encode() + b"\n")

    try:
        yield add
    finally:
        for file in files.values():
            file.close()


def build_lines(
    rollout: ExportedRollout, chain: Segment, run: ExportedRun
) -> dict[str, dict[str, Any]]:
    """Return a chain's lines by their files; none of a file where nothing could be trained."""
    record, path = rollout.record, [rollout.turns[index] for index in chain.turns]
    messages = _mark_messages(path, set(chain.own_turns))
    origin = {
        "id": f"{record.rollout_id}/{chain.index}",
        "run": run.name,
        "task": record.task_id,
        "step": record.step,
        "split": record.split,
        "kind": chain.kind,
        "thread": chain.thread,
        "outcome": record.outcome.code,
        "reward": record.reward,
        "solved": record.solved,
        "fingerprint": _fingerprint(chain, messages),
    }
    lines = {}
    if any(message.get("weight") for message in messages):
        lines[MESSAGES] = origin | {"messages": messages, "tools": latest_tools(path)}
    if chain.loss_mask.any():
        masks = chain.loss_mask.astype("uint8")
        lines[TOKENS] = origin | {"input_ids": chain.tokens, "assistant_masks": masks}
    return lines


def _mark_messages(path: list[Turn], own: set[int]) -> list[Message]:
    """Return the conversation along a path, with ``weight`` on what an assistant says."""
    messages: list[Message] = []
    for turn in path:
        for message in turn.request.get("messages", []):
            copied = message.get("role") == "assistant"
            messages.append({**message, "weight": 0} if copied else message)
        ended = turn.index in own and turn.finish_reason != "length"
        messages.append({**turn.reply, "weight": int(ended)})
    return messages


def _fingerprint(chain: Segment, messages: list[Message]) -> str:
    """Return 32 hexadecimal digits; the ids of tool calls, which are random, have no part in it."""
    digest = sha256(chain.tokens.tobytes() + chain.loss_mask.tobytes())
    if not len(chain.tokens):
        digest.update(dumps([_without_ids(message) for message in messages]).encode())
    return digest.hexdigest()[:32]


def _without_ids(message: Message) -> Message:
    kept = {key: value for key, value in message.items() if key != "tool_call_id"}
    if "tool_calls" in message:
        kept["tool_calls"] = [call.get("function") for call in message["tool_calls"]]
    return kept


def validate(path: Path) -> list[str]:
    """Return the faults of one of the two files with their line numbers; raises OSError."""

    def contradictions(line: BaseModel) -> Iterator[str]:
        if isinstance(line, TokensLine):
            lengths = len(line.input_ids), len(line.assistant_masks)
            if lengths[0] != lengths[1]:
                yield f"input_ids and assistant_masks have different lengths {lengths}"
            elif not any(line.assistant_masks) or line.assistant_masks[0]:
                yield "assistant_masks marks nothing, or the first token, which nothing predicts"
        elif isinstance(line, MessagesLine):
            marked = [message for message in line.messages if message.get("weight")]
            if not marked or any(message.get("role") != "assistant" for message in marked):
                yield "weight is 1 nowhere, or on another message than an assistant's"

    return find_faults(path, LINES[path.name], "id", lambda line: list(contradictions(line)))
