"""The forward pass agrees with transformers, however the tokens are packed."""

from __future__ import annotations

import gc
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeForCausalLM

from runners.engines.embedded.attention import DecodeBlock, KvStore, PrefillSpan, decode_blocks
from runners.engines.embedded.buffers import KEPT_TOKENS, BufferPool
from runners.engines.embedded.model import PackedStep, Qwen3Moe
from runners.engines.embedded.weights import load_weights
from tests.fakes.tiny_model import write_tiny_model

LENGTH = 48
TOLERANCE = 3e-5


def prefill(
    model: Qwen3Moe, kv: KvStore, row: int, ids: Tensor, start: int
) -> tuple[Tensor, NDArray[np.int16]]:
    """Run ``ids`` as one span of ``row``; return the logits of every position and the routing."""
    positions = np.arange(start, start + len(ids))
    step = PackedStep(
        tokens=ids.numpy().astype(np.int32),
        positions=positions,
        slots=kv.slots(np.full(len(ids), row), positions),
        decoding=0,
        lengths=(),
        blocks=(),
        spans=(PrefillSpan(row, start, len(ids)),),
        wanted=None,
    )
    return model.forward(step, kv)


def decode(
    model: Qwen3Moe,
    kv: KvStore,
    tokens: Tensor,
    at: list[int],
    blocks: tuple[DecodeBlock, ...] = (),
) -> Tensor:
    """Run one token of rows 0, 1, … at their positions; return their logits."""
    positions = np.asarray(at)
    step = PackedStep(
        tokens=tokens.numpy().astype(np.int32),
        positions=positions,
        slots=kv.slots(np.arange(len(at)), positions),
        decoding=len(at),
        lengths=[position + 1 for position in at],
        blocks=blocks or (DecodeBlock(0, len(at), max(at) + 1),),
        spans=(),
        wanted=None,
    )
    return model.forward(step, kv)[0]


def expected(model: Qwen3MoeForCausalLM, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Compute logprobs [T, V] and each routed layer's chosen experts with transformers."""
    with torch.inference_mode():
        out = model(ids[None], output_router_logits=True)
    top = model.config.num_experts_per_tok
    chosen = [logits.softmax(-1).topk(top, dim=-1).indices for logits in out.router_logits]
    return out.logits[0].log_softmax(-1), chosen


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({}, id="default"),
        pytest.param({"mlp_only_layers": [0]}, id="a dense layer"),
        pytest.param({"num_hidden_layers": 3, "decoder_sparse_step": 2}, id="sparse step"),
        pytest.param({"norm_topk_prob": False}, id="unnormalised router"),
        pytest.param({"tie_word_embeddings": False}, id="own head"),
        pytest.param({"attention_bias": True}, id="attention bias"),
        pytest.param({"num_attention_heads": 6, "num_key_value_heads": 1}, id="one kv head"),
        pytest.param({"num_experts": 32, "num_experts_per_tok": 4}, id="many experts"),
        pytest.param(
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, id="rope theta"
        ),
    ],
)
def test_logprobs_and_routing_equal_transformers(tmp_path: Path, overrides: dict[str, Any]) -> None:
    directory = write_tiny_model(tmp_path, seed=3, **overrides)
    reference = Qwen3MoeForCausalLM.from_pretrained(directory)
    assert isinstance(reference, Qwen3MoeForCausalLM)
    ids = torch.randint(0, 800, (LENGTH,), generator=torch.Generator().manual_seed(1))
    logprobs, chosen = expected(reference, ids)
    weights = load_weights(directory)
    model, kv = Qwen3Moe(weights, 64), KvStore(weights.config, 3, 64)
    first, routing = prefill(model, kv, 1, ids[:20], 0)
    second, more = prefill(model, kv, 1, ids[20:], 20)
    ours = torch.cat([first, second]).log_softmax(-1)
    assert (ours - logprobs).abs().max() < TOLERANCE
    routing = np.concatenate([routing, more])
    moe_layers = [layer for layer, moe in enumerate(weights.config.moe_layers) if moe]
    for layer, experts in zip(moe_layers, chosen, strict=True):
        assert np.array_equal(routing[:, layer], experts.numpy())
    dense = [layer for layer, moe in enumerate(weights.config.moe_layers) if not moe]
    assert not routing[:, dense].any()


@pytest.mark.parametrize("tied", [True, False])
def test_the_logprobs_of_a_dense_model_equal_transformers(tmp_path: Path, tied: bool) -> None:
    config = Qwen3Config(
        vocab_size=800, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, initializer_range=0.1,
        tie_word_embeddings=tied, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    reference = Qwen3ForCausalLM(config)
    reference.save_pretrained(tmp_path)
    ids = torch.randint(0, 800, (LENGTH,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(ids[None]).logits[0].log_softmax(-1)
    weights = load_weights(tmp_path)
    model, kv = Qwen3Moe(weights, 64), KvStore(weights.config, 3, 64)
    first, _ = prefill(model, kv, 1, ids[:20], 0)
    second, routing = prefill(model, kv, 1, ids[20:], 20)
    assert (torch.cat([first, second]).log_softmax(-1) - expected).abs().max() < TOLERANCE
    assert routing.shape == (LENGTH - 20, 2, 0)


def test_kept_memory_goes_with_its_model(model_dir: Path) -> None:
    weights = load_weights(model_dir)
    pool = BufferPool(weights.config)
    kept, large = ref(pool(8)), pool(KEPT_TOKENS + 8)
    assert kept() is pool(8)
    assert large is not pool(KEPT_TOKENS + 8)
    gc.disable()  # nothing of it waits for a collection
    try:
        del pool
        assert kept() is None
    finally:
        gc.enable()


def test_decoding_rows_of_different_lengths_equal_transformers(
    model_dir: Path, reference: Qwen3MoeForCausalLM
) -> None:
    weights = load_weights(model_dir)
    model, kv = Qwen3Moe(weights, 64), KvStore(weights.config, 3, 64)
    generator = torch.Generator().manual_seed(2)
    sequences = [torch.randint(0, 800, (n,), generator=generator) for n in (5, 40, 17)]
    for row, ids in enumerate(sequences):
        prefill(model, kv, row, ids[:-1], 0)
    last = torch.stack([ids[-1] for ids in sequences])
    at = [len(ids) - 1 for ids in sequences]
    for blocks in ((), (DecodeBlock(0, 1, 5), DecodeBlock(1, 3, 40))):
        ours = decode(model, kv, last, at, blocks).log_softmax(-1)
        for row, ids in enumerate(sequences):
            assert (ours[row] - expected(reference, ids)[0][-1]).abs().max() < TOLERANCE


@settings(deadline=None)
@given(st.lists(st.integers(1, 3000), max_size=70))
def test_blocks_cover_all_rows_in_order_up_to_their_longest(lengths: list[int]) -> None:
    blocks = decode_blocks(np.asarray(lengths, dtype=np.int64))
    covered = [row for block in blocks for row in range(block.begin, block.end)]
    assert covered == list(range(len(lengths)))
    for begin, end, longest in blocks:
        assert longest == max(lengths[begin:end])


def test_one_long_row_does_not_pad_all_others() -> None:
    lengths = np.full(64, 300)
    assert len(decode_blocks(lengths)) == 1
    lengths[20] = 2000
    assert [longest for *_, longest in decode_blocks(lengths)] == [300, 2000, 300, 300]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({}, id="every expert runs"),
        pytest.param({"num_experts": 32, "num_experts_per_tok": 4}, id="sorted by expert"),
        pytest.param({"mlp_only_layers": [0], "num_key_value_heads": 4}, id="a dense layer"),
        pytest.param({"num_key_value_heads": 1, "vocab_size": 797}, id="one kv head, odd sizes"),
    ],
)
def test_a_token_has_the_same_bits_in_any_batch(
    tmp_path: Path, overrides: dict[str, Any], threads: int
) -> None:
    weights = load_weights(write_tiny_model(tmp_path, seed=5, **overrides))
    model = Qwen3Moe(weights, 512)
    generator = torch.Generator().manual_seed(6)
    lengths = [3, 17, 130, 200, 260, 420]
    sequences = [torch.randint(0, 797, (length,), generator=generator) for length in lengths]
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        wanted = [whole(model, ids) for ids in sequences]
        together = KvStore(weights.config, len(sequences), 512)
        for row, ids in enumerate(sequences):
            # cut elsewhere, and the last positions decoded instead
            for start, end in pairwise(sorted({0, 1, len(ids) // 3, len(ids) - 2})):
                logits, routing = prefill(model, together, row, ids[start:end], start)
                assert_same(wanted[row], start, logits, routing)
        for back in (2, 1):
            at = [len(ids) - back for ids in sequences]
            last = torch.stack([ids[-back] for ids in sequences])
            logits = decode(model, together, last, at)
            for row, start in enumerate(at):
                assert torch.equal(logits[row], wanted[row][0][start])
    finally:
        torch.set_num_threads(usual)


def whole(model: Qwen3Moe, ids: Tensor) -> tuple[Tensor, NDArray[np.int16]]:
    """Run a sequence alone, as one span; return the logits of every position and the routing."""
    return prefill(model, KvStore(model.config, 1, 512), 0, ids, 0)


def assert_same(
    wanted: tuple[Tensor, NDArray[np.int16]],
    start: int,
    logits: Tensor,
    routing: NDArray[np.int16],
) -> None:
    """Compare the positions from ``start`` on, bit for bit."""
    end = start + len(logits)
    assert torch.equal(logits, wanted[0][start:end])
    assert np.array_equal(routing, wanted[1][start:end])
