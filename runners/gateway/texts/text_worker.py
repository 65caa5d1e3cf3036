"""Work on long texts for a gateway, in a process: ``python -m runners.gateway.texts.text_worker``.

It reads jobs from stdin and writes their results to stdout, one at a time, until stdin ends. A
message is two lengths of 8 bytes, a value in Python's ``marshal`` form, and a request's body.
``marshal`` keeps every number as it is, which JSON does not, and holds plain values only.
"""

from __future__ import annotations

import marshal
import os
import resource
import signal
import sys
from array import array
from dataclasses import astuple
from pathlib import Path
from typing import Any, BinaryIO

from conf.sections.gateway import GatewayLimitsConfig
from runners.gateway.dialects.json_text import mend_unicode
from runners.gateway.dialects.transfer import piece_to_plain, to_plain
from runners.gateway.refusal import OverLimit, Refused
from runners.gateway.texts.request_cache import marks_to_plain
from runners.gateway.texts.text_work import TextWork, make_text_work, parse_first, parse_request

LENGTH_BYTES = 8
NICENESS = 10
"""The gateway's loop comes first: it works for every session, this process for one."""

IDS = "i"
"""Type code of token ids in ``array``: int32."""


def encode_message(value: Any, body_size: int = 0) -> bytes:
    """Return a message without its body, which is sent after it."""
    data = marshal.dumps(value)
    return len(data).to_bytes(LENGTH_BYTES) + body_size.to_bytes(LENGTH_BYTES) + data


def read_message(stream: BinaryIO) -> tuple[Any, bytes]:
    """Return the next message and its body; raises EOFError at the end."""

    def read(size: int) -> bytes:
        data = stream.read(size)
        if len(data) < size:
            raise EOFError
        return data

    size, body_size = (int.from_bytes(read(LENGTH_BYTES)) for _ in range(2))
    return marshal.loads(read(size)), read(body_size)


def pack_ids(ids: list[int]) -> bytes:
    """Return token ids as int32."""
    return array(IDS, ids).tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """Return the token ids that ``pack_ids`` was given."""
    ids = array(IDS)
    ids.frombytes(data)
    return ids.tolist()


def do_job(
    work: TextWork | None, limits: GatewayLimitsConfig, job: dict[str, Any], body: bytes
) -> Any:
    """Return the result of a job as plain values; raises Refused.

    ``work``: None if the engine takes texts; then requests are parsed only.
    """
    if job["kind"] == "parse":
        return _parse(limits, job, body)
    assert work is not None
    match job["kind"]:
        case "render":
            rendered = work.render(job["messages"], job["tools"])
            return pack_ids(rendered.ids), rendered.forged
        case "extend":
            found = work.extend(
                unpack_ids(job["path"]), job["prompt_length"], job["messages"], job["tools"]
            )
            return found if isinstance(found, str) else (pack_ids(found.ids), found.forged)
        case "read_output":
            read = work.read_output(unpack_ids(job["ids"]), job["tools"], job["prompt"])
            parsed = read.parsed
            calls = [astuple(call) for call in parsed.tool_calls]
            return parsed.content, parsed.reasoning_content, calls, read.retokenizes
    raise AssertionError(job["kind"])


def _parse(limits: GatewayLimitsConfig, job: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Return a request, and as ``read`` what was read of its body, as plain values."""
    body, replaced = mend_unicode(body)
    asked = (job["path"], body, job["headers"], limits, job["max_context_tokens"])
    parsed, read = parse_first(*asked) if job["with_marks"] else (parse_request(*asked), None)
    if read is None:
        return to_plain(parsed) | {"read": None, "replaced": replaced}
    pieces = [piece_to_plain(piece) for piece in read.pieces]
    marks = marks_to_plain(read) | {"pieces": pieces}
    return to_plain(parsed, read.pieces) | {"read": marks, "replaced": replaced}


def answer_job(
    work: TextWork | None, limits: GatewayLimitsConfig, job: dict[str, Any], body: bytes
) -> bytes:
    """Return the message that answers a job: ``done``, ``refused`` or ``failed`` with its value."""
    try:
        return encode_message({"done": do_job(work, limits, job, body)})
    except Refused as refused:
        over = isinstance(refused, OverLimit)
        return encode_message({"refused": (over, refused.kind.value, str(refused), refused.param)})
    except MemoryError:
        return encode_message({"failed": "it needs more memory than gateway.limits.text_mb"})
    except (RecursionError, ValueError) as error:  # marshal's own limit on nesting is a ValueError
        return encode_message({"failed": f"{type(error).__name__}: {error}"[:500]})


def main() -> int:
    """Work until stdin ends; return the exit code."""
    jobs, results = sys.stdin.buffer, sys.stdout.buffer
    settings, _ = read_message(jobs)
    limits = GatewayLimitsConfig.model_validate(settings["limits"])
    tokenizer = settings["tokenizer"]
    family = settings["renderer"], settings["control_text"]
    work = None if tokenizer is None else make_text_work(Path(tokenizer), *family)
    os.nice(NICENESS)
    _limit_memory(limits.text_mb << 20)
    # Its own end for a job that never ends, should the gateway be gone by then; the default action
    # of SIGALRM ends a process even inside of a regular expression.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    results.write(encode_message("ready"))
    results.flush()
    while True:
        try:
            job, body = read_message(jobs)
        except EOFError:
            return 0
        signal.setitimer(signal.ITIMER_REAL, 2 * limits.text_s)
        results.write(answer_job(work, limits, job, body))
        results.flush()
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory(more: int) -> None:
    """Limit the address space to what it is now and ``more`` bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    raise SystemExit(main())
