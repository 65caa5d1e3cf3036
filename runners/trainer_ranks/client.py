"""Start a trainer of one or several processes and give it a campaign's commands.

Invariant: a command ends with the answers of all ranks, or with an error that names the rank that
failed first; then the trainer is of no more use.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from conf.errors import ExitCode
from runners.concurrency.task_group import task_group
from runners.processes.service import Service, ServiceStarter
from runners.trainer_ranks.commands import TrainedStep
from runners.trainer_ranks.settings import SOCKET, RankSettings
from runners.trainer_ranks.wire import Arrays, encode_message, pack_rollouts, receive_message
from runners.training import checkpoint
from runners.training.sample import Sample
from runners.training.training_error import TrainingError

if TYPE_CHECKING:  # torch, which the driver need not have
    from runners.training.token_weights import Rollout

START_S = 1800.0
"""Until all ranks have loaded the policy."""
TRANSFER_S = 600.0
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
    """A ``Trainer`` whose processes each train a share of every step."""

    def __init__(self, services: Sequence[Service], sockets: Sequence[socket.socket]) -> None:
        self._services = services
        self._sockets = sockets
        self.no_tree: str | None = services[0].info["no_tree"]

    def step(self, rollouts: Sequence[Rollout]) -> TrainedStep:
        """See ``Trainer.step``."""
        packed, arrays = pack_rollouts(rollouts)
        answer = self._call({"command": "step", "rollouts": packed}, arrays)
        return TrainedStep(answer["metrics"], answer["refused"], answer["failed_updates"])

    def fit(self, examples: Sequence[Sample]) -> dict[str, Any]:
        """See ``Trainer.fit``."""
        packed, arrays = pack_rollouts([examples])
        metrics: dict[str, Any] = self._call({"command": "fit", "rollouts": packed}, arrays)[
            "metrics"
        ]
        return metrics

    def save(self, root: Path, *, step: int, **options: Any) -> checkpoint.Checkpoint:
        """See ``Trainer.save``: the first rank writes, others give their parts if they have any."""
        best, tokenizer = options.pop("best"), options.pop("tokenizer")
        sent = {
            **options,
            "step": step,
            "best": best and (str(best.path), best.step),
            "tokenizer": None if tokenizer is None else str(tokenizer),
        }
        command = {"command": "save", "root": str(root), "options": sent}
        return checkpoint.Checkpoint(Path(self._call(command)["path"]), step)

    def save_adapters(self, directory: Path) -> None:
        """See ``Trainer.save_adapters``."""
        self._call({"command": "save_adapters", "directory": str(directory)}, ranks=1)

    def _call(
        self, command: Mapping[str, Any], arrays: Arrays | None = None, *, ranks: int | None = None
    ) -> dict[str, Any]:
        """Give a command to the first ``ranks`` processes, or to all; return the first's answer.

        Raises RankLost and RankFailed.
        """
        message = encode_message(command, arrays)
        answers: dict[int, dict[str, Any]] = {}
        complaint: RankFailed | None = None
        with selectors.DefaultSelector() as waiting:
            for rank, to in enumerate(self._sockets[:ranks]):
                waiting.register(to, selectors.EVENT_READ, rank)
                self._send(rank, message)
            while waiting.get_map():
                ready = waiting.select(COMMAND_S if complaint is None else CULPRIT_S)
                if not ready:
                    silent = [int(key.data) for key in waiting.get_map().values()]
                    raise self._hangs(silent, complaint)
                for key, _ in ready:
                    answer = answers[key.data] = self._receive(key.data)
                    waiting.unregister(key.fileobj)
                    if "error" in answer and complaint is None:
                        complaint = RankFailed(answer["error"], answer["exit_code"])
        if complaint is not None:
            raise complaint
        return answers[0]

    def _send(self, rank: int, message: bytes) -> None:
        try:
            self._sockets[rank].sendall(message)
        except TimeoutError as error:
            raise self._hangs([rank], None) from error
        except OSError as error:
            raise self._ended(rank) from error

    def _receive(self, rank: int) -> dict[str, Any]:
        """Return a process's answer; raises RankLost, and RankFailed unless the reason of its error
        is another process, which is still to be found.
        """
        try:
            message = receive_message(self._sockets[rank])
        except OSError as error:
            raise self._ended(rank) from error
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

    def _hangs(self, ranks: Sequence[int], complaint: RankFailed | None) -> RankLost:
        those = ", ".join(map(str, ranks))
        reason = "" if complaint is None else f" ({complaint})"
        return RankLost(
            f"process {those} of the trainer's {len(self._services)} does not answer{reason}; see "
            f"{self._services[ranks[0]].log}, and continue with --resume"
        )


async def start_ranks(settings: Sequence[RankSettings], starter: ServiceStarter) -> TrainerRanks:
    """Start the processes of a trainer, one per settings; ``starter`` ends them.

    Raises ServiceError if one does not become ready.
    """
    async with task_group() as starting:
        tasks = [starting.create_task(_start_rank(each, starter)) for each in settings]
    started = [task.result() for task in tasks]
    return TrainerRanks([service for service, _ in started], [ours for _, ours in started])


async def _start_rank(
    settings: RankSettings, starter: ServiceStarter
) -> tuple[Service, socket.socket]:
    """Start one process; return it and the socket of its commands, which nobody else can reach."""
    ours, theirs = socket.socketpair()
    starter.exits.callback(ours.close)
    with theirs:  # closed here once the process has it, so that its end is seen
        service = await starter.start(
            f"trainer-{settings.rank}",
            "runners.trainer_ranks",
            {**settings.model_dump(mode="json"), SOCKET: theirs.fileno()},
            deadline_s=START_S,
            descriptors=(theirs.fileno(),),
        )
    ours.settimeout(TRANSFER_S)
    return service, ours


def make_meeting(exits: AsyncExitStack) -> Path:
    """Return the file in which ranks will find each other; ``exits`` removes it."""
    folder = exits.enter_context(TemporaryDirectory(prefix="agentrl-ranks-"))
    return Path(folder) / "meeting"
