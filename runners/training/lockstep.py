"""Let processes make the same number of passes, where passes are exchanges between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from runners.training.micro_batches import MicroBatch, make_micro_batches
from runners.training.peers import TrainingPeers
from runners.training.sample import Sample


def keep_pace(
    batches: Iterator[MicroBatch], peers: TrainingPeers, idle: Callable[[], None]
) -> Iterator[MicroBatch]:
    """Yield this process's micro-batches, and call ``idle`` as often as another has more of them.

    The caller makes one pass with each, as ``idle`` does. Raises PeersLostError.
    """
    for batch in batches:
        peers.any(True)
        yield batch
    while peers.any(False):
        idle()


def make_idle_batch(device: torch.device) -> MicroBatch:
    """Return a row of two positions, of which one predicts, for a pass that changes nothing."""
    mask = np.array([False, False, True])
    sample = Sample("idle", np.zeros(3, np.int32), mask, np.zeros(3, np.float32), 0.0)
    [batch] = make_micro_batches(
        [sample], [0.0], tokens_per_microbatch=2, device=device, tree=False
    )
    return batch
