"""Compare the embedded engine, over HTTP, with ``transformers.generate`` in tokens per second.

python -m tests.benchmarks.bench_engine [--sessions 16 64] [--turns 4] [--threads 2]

The work: sessions in groups of eight that share a prompt prefix, each of several turns; a turn's
prompt is everything so far plus some new tokens, its answer is sampled at temperature 1 with
logprobs, 20 to 60 tokens long. The engine serves all sessions at once, each at its own pace.
``generate`` does the same turns in two ways: all sessions as one left-padded batch per turn (it
runs until the longest answer is done), and one session after the other. Only wanted tokens count.
``x_…`` is the engine's rate divided by generate's, in wall time and (``_cpu``) in processor time.
Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
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
from runners.processes.service import Service
from tests.fakes.tiny_model import write_tiny_model

VOCABULARY = 800
GROUP = 8
SHARED, OWN, NEW = 160, 140, 40
"""Prompt tokens: shared by the group, of the session alone, and added by every later turn."""
SERIAL_SAMPLE = 4
"""Sessions played one after the other: more of them take proportionally longer."""
START_S = 60.0


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


def make_work(sessions: int, turns: int, seed: int) -> list[list[Turn]]:
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


async def measure_engine(model: Path, threads: int, works: list[list[list[Turn]]]) -> list[Seconds]:
    """Serve each work through the HTTP API of one engine process."""
    settings = {
        "model_path": str(model),
        "max_running_requests": 128,
        "cache_tokens": 262_144,
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
        seconds = []
        for number, work in enumerate([make_work(4, 2, 99), *works]):  # the first one warms up
            begin, cpu = time.perf_counter(), sum(process.cpu_times()[:2])
            await asyncio.gather(
                *(run_session(engine, f"{number}-{s}", turns) for s, turns in enumerate(work))
            )
            wall = time.perf_counter() - begin
            seconds.append(Seconds(wall, sum(process.cpu_times()[:2]) - cpu))
        await engine.close()
        await service.stop()
    return seconds[1:]


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


def generate_batched(model: Qwen3MoeForCausalLM, work: list[list[Turn]]) -> None:
    """Play the turns of all sessions in lockstep, one batch per turn."""
    histories: list[list[int]] = [[] for _ in work]
    for turns in zip(*work, strict=True):
        for history, turn in zip(histories, turns, strict=True):
            history += turn.added
        answers = generate(model, histories, max(turn.wanted for turn in turns))
        for history, answer, turn in zip(histories, answers, turns, strict=True):
            history += answer[: turn.wanted]


def generate_serially(model: Qwen3MoeForCausalLM, work: list[list[Turn]]) -> None:
    """Play one session after the other."""
    for turns in work:
        generate_batched(model, [turns])


def measure(play: Callable[[], None]) -> Seconds:
    """Time a call."""
    begin, cpu = time.perf_counter(), time.process_time()
    play()
    return Seconds(time.perf_counter() - begin, time.process_time() - cpu)


def count_tokens(work: list[list[Turn]]) -> int:
    """Count the tokens a work wants sampled."""
    return sum(turn.wanted for turns in work for turn in turns)


def main() -> None:
    """Measure, print a table for people and one JSON line for programs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sessions", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    works = [make_work(count, args.turns, seed=count) for count in args.sessions]
    with tempfile.TemporaryDirectory() as directory:
        path = write_tiny_model(Path(directory), vocab_size=VOCABULARY)
        ours = asyncio.run(measure_engine(path, args.threads, works))
        model = Qwen3MoeForCausalLM.from_pretrained(path)
    generate_batched(model, make_work(2, 1, 99))  # warm up
    rows = []
    for count, work, engine in zip(args.sessions, works, ours, strict=True):
        sample = work[:SERIAL_SAMPLE]
        tokens, sampled = count_tokens(work), count_tokens(sample)
        rates = {
            "engine": engine.rates(tokens),
            "batched": measure(partial(generate_batched, model, work)).rates(tokens),
            "serial": measure(partial(generate_serially, model, sample)).rates(sampled),
        }
        row: dict[str, float] = {"sessions": count, "tokens": tokens}
        row |= {f"{name}_tok_s": round(wall) for name, (wall, _) in rates.items()}
        for name in ("batched", "serial"):
            row[f"x_{name}"] = round(rates["engine"][0] / rates[name][0], 1)
            row[f"x_{name}_cpu"] = round(rates["engine"][1] / rates[name][1], 1)
        rows.append(row)
    heads = list(rows[0])
    for line in [heads, *([str(value) for value in row.values()] for row in rows)]:
        print("  ".join(f"{cell:>{len(head)}}" for cell, head in zip(line, heads, strict=True)))
    print(json.dumps({"benchmark": "engine", "threads": args.threads, "rows": rows}))


if __name__ == "__main__":
    main()
