"""Start a trainer of one or several processes and give it a campaign's commands.

Invariant: a command ends with the answers of all ranks, or with an error that names the rank that
failed first; then the trainer is of no more use.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Collection, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

from conf.errors import ExitCode
from conf.sections.training import LocalTrainerConfig
from runners.records.checkpoints import Checkpoint
from runners.records.routing import TokenAgreement
from runners.system.concurrency import task_group
from runners.system.processes import Service, ServiceStarter
from runners.training.contract import TrainingError
from runners.training.ranks.settings import SOCKET, RankSettings
from runners.training.ranks.wire import Arrays, encode_message, pack_rollouts, receive_message
from runners.training.sample import Sample

if TYPE_CHECKING:  # torch, which the driver need not have
    from runners.training.ranks.campaign_trainer import CampaignTrainer
    from runners.training.sample import Rollout

START_S = 1800.0
"""Until all ranks have loaded the policy."""
TRANSFER_S = 600
"""For one message: a step's samples are some gigabytes at most."""
COMMAND_S = 86_400.0
"""For one command, if all processes hang: a step of a day is none."""
CULPRIT_S = 5.0
"""After a process has lost another one: the other's end is known here by then, or it hangs."""


class RankLost(TrainingError):
    """A process of the trainer has ended or hangs; the run can be resumed."""

    exit_code = ExitCode.SERVICE_GONE


class RankFailed(TrainingError):
    """A process of the trainer raised an error, whose text and exit code this one has."""

    def __init__(self, text: str, code: int) -> None:
        self.exit_code = ExitCode(code)
        super().__init__(text)


class TrainerRanks:
    """A trainer whose processes each train a share of every step, with the commands of a
    ``CampaignTrainer``; one call at a time, each of them blocks.
    """

    def __init__(self, services: Sequence[Service], connections: Sequence[Connection]) -> None:
        self._services = services
        self._connections = connections
        self.no_tree: str | None = services[0].info["no_tree"]
        self.refused: Mapping[str, str] = {}
        self.failed_updates: Sequence[str] = ()
        self.agreements: Sequence[TokenAgreement] = ()

    def step(self, rollouts: Sequence[Rollout]) -> dict[str, Any]:
        """See ``CampaignTrainer.step``; agreements stay in the processes."""
        packed, arrays = pack_rollouts(rollouts)
        answer = self._call({"command": "step", "rollouts": packed}, arrays)
        self.refused, self.failed_updates = answer["refused"], answer["failed_updates"]
        metrics: dict[str, Any] = answer["metrics"]
        return metrics

    def fit(self, examples: Sequence[Sample]) -> dict[str, Any]:
        """See ``CampaignTrainer.fit``."""
        packed, arrays = pack_rollouts([examples])
        answer = self._call({"command": "fit", "rollouts": packed}, arrays)
        metrics: dict[str, Any] = answer["metrics"]
        return metrics

    def save(self, root: Path, *, tokenizer: Path | None, **options: Any) -> Checkpoint:
        """See ``CampaignTrainer.save``: the first rank writes, others give it their parts."""
        options["tokenizer"] = None if tokenizer is None else str(tokenizer)
        answer = self._call({"command": "save", "root": str(root), "options": options})
        return Checkpoint(Path(answer["path"]), options["step"])

    def save_adapters(self, directory: Path) -> None:
        """See ``CampaignTrainer.save_adapters``."""
        self._call({"command": "save_adapters", "directory": str(directory)})

    def _call(self, command: Mapping[str, Any], arrays: Arrays | None = None) -> dict[str, Any]:
        """Return the first process's answer to a command for all; raises RankLost, RankFailed."""
        message = encode_message(command, arrays)
        waiting = {to: rank for rank, to in enumerate(self._connections)}
        for to, rank in waiting.items():
            self._send(rank, to, message)
        answers: dict[int, dict[str, Any]] = {}
        complaint: RankFailed | None = None
        while waiting:
            ready = wait(waiting, COMMAND_S if complaint is None else CULPRIT_S)
            if not ready:
                raise self._hangs(waiting.values(), complaint)
            for source in ready:
                assert isinstance(source, Connection)
                rank = waiting.pop(source)
                answer = answers[rank] = self._receive(rank)
                if "error" in answer and complaint is None:
                    complaint = RankFailed(answer["error"], answer["exit_code"])
        if complaint is not None:
            raise complaint
        return answers[0]

    def _send(self, rank: int, to: Connection, message: bytes) -> None:
        try:
            to.send_bytes(message)
        except BlockingIOError as error:  # after TRANSFER_S
            raise self._hangs([rank], None) from error
        except OSError as error:
            raise self._ended(rank) from error

    def _receive(self, rank: int) -> dict[str, Any]:
        """Return a process's answer; raises RankLost, and RankFailed unless the reason of its error
        is another process, which is still to be found.
        """
        message = receive_message(self._connections[rank])
        if message is None:
            raise self._ended(rank)
        answer, _ = message
        if "error" in answer and not answer["peers_lost"]:
            raise RankFailed(answer["error"], answer["exit_code"])
        return answer

    def _ended(self, rank: int) -> RankLost:
        service = self._services[rank]
        code = service.exit_code
        return RankLost(
            f"process {rank} of the trainer's {len(self._services)} has ended in the middle of a "
            f"step{'' if code is None else f' (exit {code})'}: {service.log_tail()}; "
            f"see {service.log}, and continue with --resume"
        )

    def _hangs(self, ranks: Collection[int], complaint: RankFailed | None) -> RankLost:
        those = ", ".join(map(str, ranks))
        reason = "" if complaint is None else f" ({complaint})"
        return RankLost(
            f"process {those} of the trainer's {len(self._services)} does not answer{reason}; see "
            f"{self._services[min(ranks)].log}, and continue with --resume"
        )


Trainer: TypeAlias = "CampaignTrainer | TrainerRanks"
"""A trainer as a campaign sees it, in its process or in others."""


async def start_trainer(settings: RankSettings, starter: ServiceStarter, *, apart: bool) -> Trainer:
    """Load a trainer in this process, or ``apart`` start the processes of one (``start_ranks``).

    Raises TrainingError, CheckpointError and ServiceError.
    """
    if apart:
        return await start_ranks(settings, starter)
    from runners.training.ranks.campaign_trainer import make_trainer  # imports torch

    return await asyncio.to_thread(make_trainer, settings)


async def start_ranks(settings: RankSettings, starter: ServiceStarter) -> TrainerRanks:
    """Start the processes of a trainer; ``starter`` ends them.

    Raises ServiceError if one does not become ready.
    """
    folder = starter.exits.enter_context(TemporaryDirectory(prefix="agentrl-ranks-"))
    common = settings.model_copy(update={"meeting": Path(folder) / "meeting"})
    async with task_group() as starting:
        tasks = [
            starting.create_task(_start_rank(common.model_copy(update={"rank": rank}), starter))
            for rank in range(settings.ranks)
        ]
    started = [task.result() for task in tasks]
    return TrainerRanks([service for service, _ in started], [ours for _, ours in started])


def check_devices(trainer: LocalTrainerConfig) -> None:
    """Raise TrainingError if a trainer needs GPUs that torch does not see on this machine; torch,
    whose import takes seconds, is asked only where the configuration needs one.
    """
    if trainer.device == "cuda" or (trainer.device == "auto" and trainer.devices > 1):
        from runners.training.policy import require_devices

        require_devices(trainer.device, trainer.devices)


async def _start_rank(
    settings: RankSettings, starter: ServiceStarter
) -> tuple[Service, Connection]:
    """Start one process; return it and the socket of its commands, which nobody else can reach."""
    own, theirs = socket.socketpair()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", TRANSFER_S, 0))
    ours = Connection(own.detach())
    starter.exits.callback(ours.close)
    with theirs:  # closed here once the process has it, so that its end is seen
        service = await starter.start(
            f"trainer-{settings.rank}",
            "runners.training.ranks",
            {**settings.model_dump(mode="json"), SOCKET: theirs.fileno()},
            deadline_s=START_S,
            descriptors=(theirs.fileno(),),
        )
    return service, ours
