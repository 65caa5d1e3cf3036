"""Messages between a campaign and the processes of its trainer."""

from __future__ import annotations

import math
import os
import struct
import threading
from itertools import chain
from multiprocessing import Pipe

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.records.routing import Routing
from runners.training.ranks.wire import (
    encode_message,
    pack_rollouts,
    receive_message,
    unpack_rollouts,
)
from runners.training.sample import Sample

PLAIN = ("rollout_id", "advantage", "routing")


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    length, rng = draw(st.integers(2, 40)), np.random.default_rng(draw(st.integers(0, 99)))
    routing = Routing(
        rng.integers(0, 9, (length, 2, 3)).astype(draw(st.sampled_from([np.uint8, np.uint16]))),
        rng.random(length) > 0.5,
    )
    return Sample(
        draw(st.text(max_size=8)),
        rng.integers(0, 99, length).astype(np.int32),
        rng.random(length) > 0.5,
        rng.random(length).astype(np.float32),
        draw(st.floats(allow_nan=False)),
        weight_versions=draw(st.sampled_from([None, np.arange(length, dtype=np.int32)])),
        routing=draw(st.sampled_from([None, routing])),
        teacher_logprobs=draw(st.sampled_from([None, rng.random(length).astype(np.float32)])),
        token_advantages=draw(st.sampled_from([None, rng.random(length).astype(np.float32)])),
    )


def assert_same(one: Sample, other: Sample) -> None:
    assert one.rollout_id == other.rollout_id
    assert one.advantage == other.advantage
    arrays = [name for name in Sample.__dataclass_fields__ if name not in PLAIN]
    for name in arrays:
        ours, theirs = getattr(one, name), getattr(other, name)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours, theirs)
    assert (one.routing is None) == (other.routing is None)
    if one.routing is not None and other.routing is not None:
        assert one.routing.experts.dtype == other.routing.experts.dtype
        assert np.array_equal(one.routing.experts, other.routing.experts)
        assert np.array_equal(one.routing.valid, other.routing.valid)


@given(st.lists(st.lists(samples(), max_size=3), max_size=4))
def test_rollouts_arrive_as_they_were_sent(rollouts: list[list[Sample]]) -> None:
    packed, arrays = pack_rollouts(rollouts)
    one, other = Pipe()
    with one, other:
        message = {"rollouts": packed, "none": math.inf}
        sender = threading.Thread(target=one.send_bytes, args=[encode_message(message, arrays)])
        sender.start()
        received = receive_message(other)
        sender.join()
    assert received is not None
    assert received[0] == message
    found = unpack_rollouts(received[0]["rollouts"], received[1])
    assert [len(rollout) for rollout in found] == [len(rollout) for rollout in rollouts]
    for ours, theirs in zip(chain(*rollouts), chain(*found), strict=True):
        assert_same(ours, theirs)


@pytest.mark.parametrize("sent", [0, 5, 20])
def test_a_side_that_ends_in_the_middle_of_a_message_is_an_end(sent: int) -> None:
    one, other = Pipe()
    with other:
        with one:
            message = encode_message({"command": "step"})
            os.write(one.fileno(), (struct.pack("!i", len(message)) + message)[:sent])
        assert receive_message(other) is None
