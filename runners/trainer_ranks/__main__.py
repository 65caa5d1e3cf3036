"""``python -m runners.trainer_ranks``: one process of a trainer (protocol:
``runners.processes.service``).

It trains its share of each step together with the other ranks, if it has any, and takes commands
from the campaign over a socket. Whatever goes wrong in a command ends it: after half a step no rank
can go on.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from conf.errors import AgentrlError
from runners.processes.service import announce, receive_settings
from runners.trainer_ranks.commands import TrainerHere
from runners.trainer_ranks.settings import SOCKET, RankSettings
from runners.trainer_ranks.wire import Arrays, encode_message, receive_message, unpack_rollouts
from runners.training import checkpoint
from runners.training.local import LocalTrainer
from runners.training.peers import PeersLostError, ProcessPeers, TrainingPeers
from runners.training.policy import require_devices
from runners.training.training_error import TrainingError


def run() -> int:
    """Serve the commands of one campaign; return the exit code."""
    received = receive_settings()
    campaign = socket.socket(fileno=received.pop(SOCKET))
    settings = RankSettings.model_validate_json(json.dumps(received))
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    device = _choose_device(settings)
    trainer = TrainerHere(_make_trainer(settings, _join_ranks(settings, device)))
    announce({"no_tree": trainer.no_tree})
    with campaign:
        while (message := receive_message(campaign)) is not None:
            try:
                answer = _execute(trainer, *message)
            except AgentrlError as error:
                campaign.sendall(encode_message(_describe(error)))
                # The campaign ends all ranks; an end of our own would look like another failure.
                threading.Event().wait()
            campaign.sendall(encode_message(answer))
    return 0


def _describe(error: AgentrlError) -> dict[str, Any]:
    lost = isinstance(error, PeersLostError)
    return {"error": str(error), "exit_code": int(error.exit_code), "peers_lost": lost}


def _execute(trainer: TrainerHere, command: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Carry out one command and return the answer."""
    match command["command"]:
        case "step":
            done = trainer.step(unpack_rollouts(command["rollouts"], arrays))
            return {
                "metrics": done.metrics,
                "refused": dict(done.refused),
                "failed_updates": list(done.failed_updates),
            }
        case "fit":
            [examples] = unpack_rollouts(command["rollouts"], arrays)
            return {"metrics": trainer.fit(examples)}
        case "save" if trainer.local.peers.rank:
            if trainer.local.weights.is_divided:
                checkpoint.give_parts(trainer.local)
            return {}
        case "save":
            options = command["options"]
            best = options.pop("best")
            saved = trainer.save(
                Path(command["root"]),
                **options | {"tokenizer": _path(options["tokenizer"])},
                best=best and checkpoint.Checkpoint(Path(best[0]), best[1]),
            )
            return {"path": str(saved.path)}
        case "save_adapters":
            trainer.save_adapters(Path(command["directory"]))
            return {}
    raise TrainingError(f"an unknown command: {command['command']}")


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _choose_device(settings: RankSettings) -> torch.device:
    """Return the rank's device, and let it compute there; raises TrainingError."""
    device = require_devices(settings.trainer.device, settings.ranks)
    if device.type == "cuda":
        torch.cuda.set_device(settings.rank)
    elif not settings.trainer.threads:
        # One process alone trains while rollouts run (run.overlap): half of the cores is theirs.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // max(2, settings.ranks)))
    return device


def _join_ranks(settings: RankSettings, device: torch.device) -> TrainingPeers:
    """Meet the other ranks, if there are any.

    They listen on this machine's loopback only, also where the user's environment has the network
    of a cluster: whoever reaches their ports is not asked for a password.
    """
    if settings.ranks == 1:
        return TrainingPeers()
    for library in ("GLOO", "NCCL"):
        os.environ[f"{library}_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=torch.distributed.FileStore(  # type: ignore[attr-defined]
            str(settings.meeting), settings.ranks
        ),
        rank=settings.rank,
        world_size=settings.ranks,
        timeout=timedelta(seconds=settings.exchange_s),
    )
    return ProcessPeers(device)


def _make_trainer(settings: RankSettings, peers: TrainingPeers) -> LocalTrainer:
    trainer = LocalTrainer(
        settings.trainer,
        weights=settings.weights,
        temperature=settings.temperature,
        seed=settings.seed,
        routing=settings.routing,
        merges_adapters=settings.merges_adapters,
        peers=peers,
    )
    if settings.checkpoint is not None:
        checkpoint.restore(trainer, checkpoint.Checkpoint(settings.checkpoint, settings.step))
    return trainer


def _end_with_parent() -> None:
    """End this process when its parent is gone, whatever it computes at that moment."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def main() -> int:
    """Return the process's exit code; the reason of a failure goes to stderr."""
    try:
        return run()
    except AgentrlError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by Python's own end: the group of ranks would wait for those that will never come.
    os._exit(code)
