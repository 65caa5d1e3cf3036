"""Let processes make the same number of passes, where passes are exchanges between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from runners.training.micro_batches import MicroBatch, make_micro_batches
from runners.training.peers import TrainingPeers
from runners.training.sample import Sample


def equalize_passes(
    batches: Iterator[MicroBatch], peers: TrainingPeers, run_placeholder: Callable[[], None]
) -> Iterator[MicroBatch]:
    """Yield this process's micro-batches, then call ``run_placeholder`` until no process has more.

    The caller makes one pass with each micro-batch, as ``run_placeholder`` does.
    """
    for batch in batches:
        peers.any(True)
        yield batch
    while peers.any(False):
        run_placeholder()


def make_placeholder(device: torch.device) -> MicroBatch:
    """Return a row of two positions, of which one predicts, for a pass that changes nothing."""
    mask = np.array([False, False, True])
    sample = Sample("placeholder", np.zeros(3, np.int32), mask, np.zeros(3, np.float32), 0.0)
    [batch] = make_micro_batches(
        [sample], [0.0], tokens_per_microbatch=2, device=device, tree=False
    )
    return batch
