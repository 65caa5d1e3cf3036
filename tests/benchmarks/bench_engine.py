"""Compare the embedded engine, over HTTP, with ``transformers.generate`` in tokens per second.

python -m tests.benchmarks.bench_engine [--sessions 16 64] [--turns 4] [--threads 2] [--repeats 3]

The work: sessions in groups of eight that share a prompt prefix, each of several turns; a turn's
prompt is everything so far plus some new tokens, its answer is sampled at temperature 1 with
logprobs, 20 to 60 tokens long. The engine serves all sessions at once, each at its own pace.
``generate`` does the same turns in two ways: all sessions as one left-padded batch per turn (it
runs until the longest answer is done), and one session after the other. Only wanted tokens count.
``forward`` is the engine's limit: the forward passes of the same work alone, prefill included,
without HTTP, scheduler, prefix cache and sampling. ``x_…`` is the engine's rate divided by another,
in wall time and (``_cpu``) in processor time. Ways are measured in turns, each has its best of the
repeats. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import torch
from transformers import Qwen3MoeForCausalLM

from runners.engines.client import HttpEngine
from runners.engines.contract import SamplingParams
from runners.engines.embedded.attention import KvStore
from runners.engines.embedded.model import PackedStep, Qwen3Moe, RoutingArray
from runners.engines.embedded.request import Request, RequestSampling
from runners.engines.embedded.scheduler import Scheduler
from runners.engines.embedded.weights import load_weights
from runners.system.processes.service import Service
from tests.fakes.tiny_model import write_tiny_model

VOCABULARY = 800
GROUP = 8
SHARED, OWN, NEW = 160, 140, 40
"""Prompt tokens: shared by the group, of the session alone, and added by every later turn."""
SERIAL_SAMPLE = 4
"""Sessions played one after the other: more of them take proportionally longer."""
START_S = 60.0
ROWS, CACHE_TOKENS, CONTEXT = 128, 262_144, 2048


@dataclass(frozen=True, slots=True)
class Seconds:
    """Duration of a measurement."""

    wall: float
    cpu: float

    def rates(self, tokens: int) -> tuple[float, float]:
        """Return tokens per second of wall time and of processor time."""
        return tokens / self.wall, tokens / self.cpu


@dataclass(frozen=True, slots=True)
class Turn:
    """Tokens that a session adds to its history, and the number it then samples."""

    added: list[int]
    wanted: int


Work = list[list[Turn]]
"""The turns of every session."""


def make_work(sessions: int, turns: int, seed: int) -> Work:
    """Draw the turns of every session."""
    rng = np.random.default_rng(seed)

    def ids(count: int) -> list[int]:
        found: list[int] = rng.integers(0, VOCABULARY, count).tolist()
        return found

    shared = [ids(SHARED) for _ in range(-(-sessions // GROUP))]
    return [
        [
            Turn([*shared[s // GROUP], *ids(OWN)] if turn == 0 else ids(NEW), int(wanted))
            for turn, wanted in enumerate(rng.integers(20, 61, turns))
        ]
        for s in range(sessions)
    ]


async def run_session(engine: HttpEngine, name: str, turns: list[Turn]) -> None:
    """Play one session's turns one after the other."""
    history: list[int] = []
    for index, turn in enumerate(turns):
        history += turn.added
        params = SamplingParams(turn.wanted)
        answer = await engine.generate(history, params, rid=f"{name}-{index}")
        assert len(answer.output_ids) == turn.wanted
        history += answer.output_ids.tolist()


@asynccontextmanager
async def serve(model: Path, threads: int) -> AsyncIterator[Callable[[Work], Awaitable[Seconds]]]:
    """Start an engine process; yield a function that plays a work through its HTTP API."""
    settings = {
        "model_path": str(model),
        "max_running_requests": ROWS,
        "cache_tokens": CACHE_TOKENS,
        "threads": threads,
    }
    with tempfile.TemporaryDirectory() as log:
        service = await Service.start(
            "engine",
            "runners.engines.embedded",
            settings,
            log=Path(log) / "engine.log",
            deadline_s=START_S,
        )
        process, engine = psutil.Process(service.pid), HttpEngine(service.info["url"])
        numbers = itertools.count()

        async def play(work: Work) -> Seconds:
            number = next(numbers)
            begin, cpu = time.perf_counter(), sum(process.cpu_times()[:2])
            await asyncio.gather(
                *(run_session(engine, f"{number}-{s}", turns) for s, turns in enumerate(work))
            )
            wall = time.perf_counter() - begin
            return Seconds(wall, sum(process.cpu_times()[:2]) - cpu)

        try:
            yield play
        finally:
            await engine.close()
            await service.stop()


class TimedModel(Qwen3Moe):
    """A model that adds up the time of its forward passes."""

    spent = Seconds(0.0, 0.0)

    def forward(self, step: PackedStep, kv: KvStore) -> tuple[torch.Tensor, RoutingArray]:
        """Forward, timed."""
        begin, cpu = time.perf_counter(), time.process_time()
        found = super().forward(step, kv)
        wall, used = time.perf_counter() - begin, time.process_time() - cpu
        self.spent = Seconds(self.spent.wall + wall, self.spent.cpu + used)
        return found


def measure_forward(directory: Path, work: Work) -> Seconds:
    """Play a work in this process; return the time of the forward passes alone."""
    model = TimedModel(load_weights(directory), CONTEXT)
    scheduler = Scheduler(
        model, max_running_requests=ROWS, cache_tokens=CACHE_TOKENS, max_context_tokens=CONTEXT,
        weight_version=0, tokenizer=None,
    )  # fmt: skip

    def submit(history: list[int], turn: Turn) -> Request:
        history += turn.added
        prompt, sampling = np.asarray(history, np.int32), RequestSampling(turn.wanted)
        request = Request("", prompt, sampling, None, None, time.monotonic())
        scheduler.waiting.append(request)
        return request

    histories: list[list[int]] = [[] for _ in work]
    left = [list(turns) for turns in work]
    running = [submit(histories[s], left[s].pop(0)) for s in range(len(work))]
    while not scheduler.idle:
        scheduler.step()
        for s, request in enumerate(running):
            if request.result.done() and left[s]:
                histories[s] += request.result.result().output_ids.tolist()
                running[s] = submit(histories[s], left[s].pop(0))
    return model.spent


def generate(model: Qwen3MoeForCausalLM, batch: list[list[int]], count: int) -> list[list[int]]:
    """Sample ``count`` tokens for every history of a left-padded batch, with logprobs, as the
    engine does.
    """
    width = max(len(ids) for ids in batch)
    ids = torch.tensor([[0] * (width - len(row)) + row for row in batch])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch])
    out = cast(Any, model).generate(
        ids,
        attention_mask=mask,
        max_new_tokens=count,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    new = out.sequences[:, width:]
    torch.stack(out.logits, 1).log_softmax(-1).gather(2, new[:, :, None])
    sampled: list[list[int]] = new.tolist()
    return sampled


def generate_batched(model: Qwen3MoeForCausalLM, work: Work) -> None:
    """Play the turns of all sessions in lockstep, one batch per turn."""
    histories: list[list[int]] = [[] for _ in work]
    for turns in zip(*work, strict=True):
        for history, turn in zip(histories, turns, strict=True):
            history += turn.added
        answers = generate(model, histories, max(turn.wanted for turn in turns))
        for history, answer, turn in zip(histories, answers, turns, strict=True):
            history += answer[: turn.wanted]


def generate_serially(model: Qwen3MoeForCausalLM, work: Work) -> None:
    """Play one session after the other."""
    for turns in work:
        generate_batched(model, [turns])


def measure(play: Callable[[], None]) -> Seconds:
    """Time a call."""
    begin, cpu = time.perf_counter(), time.process_time()
    play()
    return Seconds(time.perf_counter() - begin, time.process_time() - cpu)


def count_tokens(work: Work) -> int:
    """Count the tokens a work wants sampled."""
    return sum(turn.wanted for turns in work for turn in turns)


async def measure_all(
    path: Path, works: list[Work], threads: int, repeats: int
) -> list[dict[str, Seconds]]:
    """Measure every way to play each work, in turns, the fastest of some repeats."""
    model = Qwen3MoeForCausalLM.from_pretrained(path)
    generate_batched(model, make_work(2, 1, 99))  # warm up
    measure_forward(path, make_work(2, 1, 99))
    rows = []
    async with serve(path, threads) as play:
        await play(make_work(4, 2, 99))
        for work in works:
            found: dict[str, list[Seconds]] = {}
            for _ in range(repeats):
                found.setdefault("engine", []).append(await play(work))
                found.setdefault("forward", []).append(measure_forward(path, work))
                batched = partial(generate_batched, model, work)
                found.setdefault("batched", []).append(measure(batched))
            serially = partial(generate_serially, model, work[:SERIAL_SAMPLE])
            found["serial"] = [measure(serially)]
            rows.append({way: find_best(several) for way, several in found.items()})
    return rows


def find_best(several: list[Seconds]) -> Seconds:
    """Return the least wall and the least processor time."""
    return Seconds(min(one.wall for one in several), min(one.cpu for one in several))


def summarize(work: Work, seconds: dict[str, Seconds]) -> dict[str, float]:
    """Return tokens per second of each way, and the engine's over those of the others."""
    row: dict[str, float] = {"sessions": len(work), "tokens": count_tokens(work)}
    rates = {
        way: of.rates(count_tokens(work[:SERIAL_SAMPLE] if way == "serial" else work))
        for way, of in seconds.items()
    }
    row |= {f"{way}_tok_s": round(wall) for way, (wall, _) in rates.items()}
    for way in ("batched", "serial", "forward"):
        row[f"x_{way}"] = round(rates["engine"][0] / rates[way][0], 2)
        row[f"x_{way}_cpu"] = round(rates["engine"][1] / rates[way][1], 2)
    return row


def main() -> None:
    """Measure, print a table for people and one JSON line for programs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sessions", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    works = [make_work(count, args.turns, seed=count) for count in args.sessions]
    with tempfile.TemporaryDirectory() as directory:
        path = write_tiny_model(Path(directory), vocab_size=VOCABULARY)
        found = asyncio.run(measure_all(path, works, args.threads, args.repeats))
    rows = [summarize(work, seconds) for work, seconds in zip(works, found, strict=True)]
    heads = list(rows[0])
    for line in [heads, *([str(value) for value in row.values()] for row in rows)]:
        print("  ".join(f"{cell:>{len(head)}}" for cell, head in zip(line, heads, strict=True)))
    print(json.dumps({"benchmark": "engine", "threads": args.threads, "rows": rows}))


if __name__ == "__main__":
    main()
