"""The local trainer: policy gradients in plain torch on one CPU or one GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from conf.sections.plugin import PluginConfig
from conf.sections.training import LocalTrainerConfig, RoutingOffConfig, RoutingReplayConfig
from runners.records.record import LogprobArray
from runners.records.routing import Routing, RoutingError, TokenAgreement
from runners.system.plugins import PluginFailedError
from runners.training.attention import repeat_keys
from runners.training.contract import TrainingError
from runners.training.equal_passes import equalize_passes, make_placeholder
from runners.training.freed_memory import return_freed_memory
from runners.training.hidden_states import ForwardScope, compute_hidden_states
from runners.training.lora import Adapters
from runners.training.micro_batches import (
    MicroBatch,
    make_micro_batches,
    split_rollouts,
)
from runners.training.mismatch import Mismatch
from runners.training.objective import Objective
from runners.training.peers import TrainingPeers
from runners.training.policy import find_decoder, find_device, load_policy, make_optimizer
from runners.training.policy_check import check_policy, prepare_trees
from runners.training.precision import MasterWeights, round_policy
from runners.training.recompute import (
    Entropy,
    checkpoint_layers,
    compute_chosen_logprobs,
    no_contexts,
)
from runners.training.reduce_metrics import reduce_totals
from runners.training.routing.shape import read_routing_shape
from runners.training.routing.step import RoutingReplay
from runners.training.sample import Rollout, Sample, compute_token_weights, has_gradient
from runners.training.schedule import find_learning_rate
from runners.training.sharded_policy import ShardedPolicy, shard_policy
from runners.training.totals import StepTotals
from runners.training.tree.layers import enable_trees

NATIVE = RoutingOffConfig(kind="off")
"""No replay: training chooses its own experts."""


class LocalTrainer:
    """The policy and its optimizer; changed only by ``step`` and ``checkpoint.restore``, from one
    thread at a time.
    """

    def __init__(
        self,
        config: LocalTrainerConfig,
        *,
        weights: Path,
        temperature: float,
        seed: int,
        routing: RoutingReplayConfig = NATIVE,
        merges_adapters: bool = True,
    ) -> None:
        """Load the policy from a directory of safetensors.

        ``temperature``: that of the rollouts, by which logits are divided here too; ``seed``: of
        the split into minibatches, and of new adapters. ``merges_adapters``: checkpoints hold
        whole weights beside adapters. The ranks of
        torch.distributed's default group, if there is one, train it together. Raises TrainingError
        if the policy cannot be loaded, RoutingError if its routing cannot be replayed, and
        PluginError.
        """
        self.config = config
        self.peers = TrainingPeers()
        self.temperature = temperature
        self.device = find_device(config.device)
        if config.threads:
            torch.set_num_threads(config.threads)
        self.model = load_policy(weights).to(self.device)
        check_policy(self.model)
        self.no_tree = prepare_trees(self.model)
        """Why micro-batches are rows of samples; None: they are prefix trees."""
        if self.no_tree and self.device.type == "cuda" and config.precision == "float32":
            repeat_keys(self.model)
        self.model.train()
        self.adapters: Adapters | None = None
        """Trained instead of the weights if ``trainer.lora`` is on."""
        self.merges_adapters = merges_adapters
        if config.lora.rank:
            self.adapters = Adapters(self.model, config.lora, base=weights, seed=seed)
        self.weights = self._own_weights()
        self.optimizer = make_optimizer(self.weights.trained.values(), config, self.device)
        self.objective = Objective(config)
        self.failed_updates: Sequence[str] = ()
        """Updates of the last step that were left out because a plug-in's loss failed: reasons."""
        self.generator = torch.Generator().manual_seed(seed)
        self.steps = 0
        """Training steps done; a restored trainer goes on from its checkpoint's."""
        self.replay: RoutingReplay | None = None
        if not isinstance(routing, RoutingOffConfig):
            shape = read_routing_shape(weights)
            if shape is None:
                raise RoutingError(
                    f"{weights} is a dense policy: it has no routing; set routing_replay=off"
                )
            self.replay = RoutingReplay(self.model, routing, shape)
        self.recompute = config.recompute is True or (
            config.recompute == "auto" and self.device.type == "cuda"
        )
        """Activations are computed again in the backward pass instead of being kept."""
        if self.recompute:
            replay = self.replay
            checkpoint_layers(self.model, no_contexts if replay is None else replay.recomputation)
        self.reference: nn.Module | None = None
        """The policy with which the run began, for the KL penalty; None: without one, or where it
        is the policy without its adapters.
        """
        if self.objective.needs_reference and self.adapters is None:
            self.reference = load_policy(weights).to(self.device)
            if self.no_tree is None:
                enable_trees(self.reference)
            if config.precision == "bfloat16":
                round_policy(self.reference)
            if isinstance(self.weights, ShardedPolicy):
                shard_policy(self.reference, config.precision, keeps_whole=False)

    def _own_weights(self) -> MasterWeights | ShardedPolicy:
        """Take over the weights that are trained, or this process's part of them."""
        precision, shard = self.config.precision, self.config.shard
        if shard == "none":
            return MasterWeights(self.model, precision)
        return ShardedPolicy(self.model, precision, keeps_whole=shard == "optimizer")

    def step(self, rollouts: Sequence[Rollout]) -> dict[str, Any]:
        """Train on the samples of one campaign step's rollouts and return its metrics.

        ``epochs`` passes over the rollouts, each split anew into ``minibatches`` optimizer updates
        (AdamW, Loshchilov & Hutter 2019, arXiv 1711.05101). Samples whose advantage is exactly 0
        stay in the averages but are not run through the model: without a KL term and an entropy
        bonus their gradient is exactly 0. With a loss of the user's own they are run, and an update
        in which it fails is left out. Raises TrainingError, also if it fails in all of them, and
        RoutingError.
        """
        started = time.perf_counter()
        self.steps += 1
        totals = StepTotals(learning_rate=find_learning_rate(self.config, self.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = totals.learning_rate
        self.failed_updates = totals.failed
        rollouts = self._prepare(rollouts, totals)
        for _ in range(self.config.epochs):
            for part in split_rollouts(rollouts, self.config.minibatches, self.generator):
                try:
                    self._update(part, totals)
                except PluginFailedError as error:
                    totals.failed.append(str(error))
        if totals.failed and not totals.updates:
            raise TrainingError(f"no update of step {self.steps} was made: {totals.failed[0]}")
        reduce_totals(totals, self.peers)
        return_freed_memory()
        return totals.metrics(time.perf_counter() - started) | self._replay_metrics(totals)

    @property
    def refused(self) -> Mapping[str, str]:
        """Rollouts of the last step that were masked because their routing was impossible, with
        the reason: layer and token.
        """
        return {} if self.replay is None else self.replay.refused

    @property
    def agreements(self) -> Sequence[TokenAgreement]:
        """Agreement of its own router with the routing that was replayed in the last step, of the
        samples that this process ran.
        """
        return [] if self.replay is None else self.replay.agreements

    def _prepare(self, rollouts: Sequence[Rollout], totals: StepTotals) -> Sequence[Rollout]:
        """Return the samples, checked and, where the configuration needs it, with the trainer's
        own logprobs and routing from before the first update.
        """
        samples = [sample for rollout in rollouts for sample in rollout]
        trained = [sample for sample in samples if has_gradient(sample, self.config)]
        self.peers.share(trained, tree=self.no_tree is None)
        if self.replay is not None:
            samples = self.replay.admit(samples)
        with_gradient = self._with_gradient(samples)
        several = self.config.minibatches * self.config.epochs > 1
        records = self.replay is not None and self.replay.records
        if records or several:
            observed = self._observe([samples[index] for index in with_gradient])
            for index, sample in zip(with_gradient, observed, strict=True):
                samples[index] = sample
            if self.replay is not None:
                self.replay.end_first_pass(self.peers)
        if self.objective.needs_reference:
            compared = self._compare([samples[index] for index in with_gradient])
            for index, sample in zip(with_gradient, compared, strict=True):
                samples[index] = sample
        if self.replay is not None and self.replay.shadow_due(self.steps):
            self._measure_native([samples[index] for index in with_gradient], totals)
        remaining = iter(samples)
        return [[next(remaining) for _ in rollout] for rollout in rollouts]

    @torch.no_grad()
    def _observe(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return samples with the trainer's own logprobs and, if recorded, its own routing."""
        observed = list(samples)
        for batch in self._batches(samples):
            routing: dict[int, Routing] = {}
            faulty: list[int] = []
            with ExitStack() as exits:
                if self.replay is None:
                    logprobs = self._logprobs(batch)
                elif self.replay.records:
                    scope, routing = exits.enter_context(self.replay.record(batch, samples))
                    logprobs = self._logprobs(batch, scope)
                else:
                    replayed = exits.enter_context(self.replay.replay(batch))
                    logprobs = self._logprobs(batch, replayed.scope)
                    faulty = replayed.find_faults()
            for index, old in _spread(batch, logprobs[:, 0], samples):
                known = routing.get(index, samples[index].routing)
                observed[index] = replace(samples[index], old_logprobs=old, routing=known)
            for index in (batch.samples[row] for row in faulty):
                observed[index] = observed[index].without_routing()
        return observed

    @torch.no_grad()
    def _compare(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return samples with the reference policy's logprobs; its routing is its own."""
        compared = list(samples)
        for batch in self._batches(samples, policy=self.reference):
            with nullcontext() if self.adapters is None else self.adapters.disabled():
                logprobs = self._logprobs(batch, policy=self.reference)[:, 0]
            for index, reference in _spread(batch, logprobs, samples):
                compared[index] = replace(samples[index], reference_logprobs=reference)
        return compared

    @torch.no_grad()
    def _measure_native(self, samples: Sequence[Sample], totals: StepTotals) -> None:
        """Measure the mismatch that the step would have without replay."""
        totals.native = Mismatch()
        for batch in self._batches(samples):
            totals.native.add(self._logprobs(batch)[:, 0], batch.rollout_logprobs)

    def _update(self, rollouts: Sequence[Rollout], totals: StepTotals) -> None:
        """Make one optimizer update on one minibatch; none if nothing in it has a gradient."""
        weights = compute_token_weights(
            rollouts, self.config.mean_of_losses, self.config.aggregation_tokens
        )
        samples = [sample for rollout in rollouts for sample in rollout]
        with_gradient = self._with_gradient(samples)
        if not self.peers.any(bool(with_gradient)):
            return
        self.weights.clear_gradients()
        loss = 0.0
        for batch in self._batches(
            [samples[index] for index in with_gradient], [weights[index] for index in with_gradient]
        ):
            totals.add_positions(batch)
            with ExitStack() as exits:
                kind = self.objective.entropy
                if self.replay is None:
                    found = self._logprobs(batch, entropy=kind)
                else:
                    replayed = exits.enter_context(self.replay.replay(batch))
                    found = self._logprobs(batch, replayed.scope, entropy=kind)
                    batch, found = replayed.leave_out_faults(batch, found)
                if len(found):
                    part = self.objective.compute(batch, found, totals)
                    part.backward()  # type: ignore[no-untyped-call]
                    loss += part.item()
                elif self.weights.exchanges_in_passes:
                    found.sum().backward()  # type: ignore[no-untyped-call]
        self.weights.add_gradients(self.peers)
        [loss] = self.peers.add([loss])
        if self.replay is not None:
            self.replay.measure_gradients()
            self._check_replay(self.replay, [samples[index] for index in with_gradient], totals)
        norm = self.weights.clip_gradients(self.config.grad_clip)
        finite = abs(loss) < float("inf") and norm < float("inf")
        if not finite and isinstance(self.config.loss, PluginConfig):
            raise PluginFailedError("trainer.loss: a gradient that is not finite")
        if not finite:
            raise TrainingError(
                f"the update is not finite (loss {loss}, gradient norm {norm}): "
                "lower trainer.learning_rate"
            )
        self.weights.step(self.optimizer)
        totals.count_update(loss, norm)

    def _check_replay(
        self, replay: RoutingReplay, samples: Sequence[Sample], totals: StepTotals
    ) -> None:
        """Check the replay before the step's first update; raises RoutingError."""
        if totals.updates:
            return
        replay.end_first_pass(self.peers)
        # Of all processes: they compare the same, and go on or stop together.
        measured = totals.mismatch.joined(self.peers.join)
        if totals.native is None and replay.shadow.suspects(measured):
            self._measure_native(samples, totals)
        native = totals.native and totals.native.joined(self.peers.join)
        replay.shadow.compare(measured, native)

    def _with_gradient(self, samples: Sequence[Sample]) -> list[int]:
        """Return the indices of this process's samples that change the weights."""
        return [
            index
            for index, sample in enumerate(samples)
            if self.peers.owns(sample) and has_gradient(sample, self.config)
        ]

    def _batches(
        self,
        samples: Sequence[Sample],
        weights: Sequence[float] | None = None,
        policy: Any = None,
    ) -> Iterator[MicroBatch]:
        """Yield micro-batches, each of which is run once by the caller; ``policy``: of the passes,
        as of ``_logprobs``.
        """
        batches = make_micro_batches(
            samples,
            weights or [0.0] * len(samples),
            tokens_per_microbatch=self.config.tokens_per_microbatch,
            device=self.device,
            tree=self.no_tree is None,
        )
        if not self.weights.exchanges_in_passes:
            return batches
        return equalize_passes(batches, self.peers, lambda: self._run_placeholder(policy))

    def _run_placeholder(self, policy: Any) -> None:
        """Take part in a pass of other processes; backward, too, where gradients are computed.

        Outside of a replay, whose counts are of samples.
        """
        found = self._logprobs(make_placeholder(self.device), policy=policy)
        if found.requires_grad:
            (0.0 * found.sum()).backward()  # type: ignore[no-untyped-call]

    def _logprobs(
        self,
        batch: MicroBatch,
        scope: ForwardScope = nullcontext,
        policy: Any = None,
        entropy: Entropy = "none",
    ) -> Tensor:
        """Return the logprobs of the trained tokens after temperature and, if wanted, the
        entropies: float32 [n, 1 or 2]. ``policy``: another than the one that is trained.

        Logits are computed at the positions that predict trained tokens only, once at each: the
        vocabulary is the widest dimension.
        """
        computed = policy or self.model

        def compute() -> Tensor:
            hidden = compute_hidden_states(find_decoder(computed), batch, scope)
            return compute_chosen_logprobs(
                self.weights.make_head(computed),
                hidden.index_select(0, batch.predictors),
                batch.predicted_by,
                batch.targets,
                self.temperature,
                chunked=self.recompute,
                entropy=entropy,
            )

        return self.weights.run_pass(computed, compute)

    def _replay_metrics(self, totals: StepTotals) -> dict[str, Any]:
        if self.replay is None:
            return {}
        self.replay.merge(self.peers)
        native = None if totals.native is None else totals.native.metrics()
        return self.replay.metrics(totals.mismatch.metrics(), native)


def _spread(
    batch: MicroBatch, logprobs: Tensor, samples: Sequence[Sample]
) -> Iterator[tuple[int, LogprobArray]]:
    """Yield each sample's index, and its logprobs as an array of its length."""
    found, rows = logprobs.cpu().numpy(), batch.rows.cpu().numpy()
    for row, index in enumerate(batch.samples):
        mask = samples[index].loss_mask
        array = np.zeros(len(mask), np.float32)
        array[mask] = found[rows == row]
        yield index, array
