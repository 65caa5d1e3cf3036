"""``python -m runners.training.ranks``: one process of a trainer (protocol:
``runners.system.processes.service``).

It trains its share of each step together with the other ranks, if it has any, and takes commands
from the campaign over a socket. Whatever goes wrong in a command ends it: after half a step no rank
can go on.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from conf.errors import AgentrlError
from runners.system.processes import announce, receive_settings
from runners.training import checkpoint
from runners.training.contract import TrainingError
from runners.training.peers import PeersLostError, find_lost_peers
from runners.training.policy import require_devices
from runners.training.ranks.campaign_trainer import CampaignTrainer, make_trainer
from runners.training.ranks.settings import SOCKET, RankSettings
from runners.training.ranks.wire import Arrays, encode_message, receive_message, unpack_rollouts


def run() -> int:
    """Serve the commands of one campaign; return the exit code."""
    received = receive_settings()
    campaign = Connection(received.pop(SOCKET))
    settings = RankSettings.model_validate_json(json.dumps(received))
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    device = _choose_device(settings)
    _join_ranks(settings, device)
    trainer = make_trainer(settings)
    announce({"no_tree": trainer.no_tree})
    while (message := receive_message(campaign)) is not None:
        try:
            with find_lost_peers():
                answer = _execute(trainer, *message)
        except AgentrlError as error:
            lost = isinstance(error, PeersLostError)
            complaint = {"error": str(error), "exit_code": int(error.exit_code)}
            campaign.send_bytes(encode_message(complaint | {"peers_lost": lost}))
            # The campaign ends all ranks; an end of our own would look like another failure.
            threading.Event().wait()
        campaign.send_bytes(encode_message(answer))
    return 0


def _execute(trainer: CampaignTrainer, command: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Carry out one command and return the answer."""
    match command["command"]:
        case "step":
            return {
                "metrics": trainer.step(unpack_rollouts(command["rollouts"], arrays)),
                "refused": dict(trainer.refused),
                "failed_updates": list(trainer.failed_updates),
            }
        case "fit":
            [examples] = unpack_rollouts(command["rollouts"], arrays)
            return {"metrics": trainer.fit(examples)}
        case "save" | "save_adapters" if trainer.peers.rank:
            checkpoint.give_parts(trainer)
            return {}
        case "save":
            options = command["options"]
            if options["tokenizer"] is not None:
                options["tokenizer"] = Path(options["tokenizer"])
            return {"path": str(trainer.save(Path(command["root"]), **options).path)}
        case "save_adapters":
            trainer.save_adapters(Path(command["directory"]))
            return {}
    raise TrainingError(f"an unknown command: {command['command']}")


def _choose_device(settings: RankSettings) -> torch.device:
    """Return the rank's device, and let it compute there; raises TrainingError."""
    device = require_devices(settings.trainer.device, settings.ranks)
    if device.type == "cuda":
        torch.cuda.set_device(settings.rank)
    elif not settings.trainer.threads:
        # One process alone trains while rollouts run (run.overlap): half of the cores is theirs.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // max(2, settings.ranks)))
    return device


def _join_ranks(settings: RankSettings, device: torch.device) -> None:
    """Meet the other ranks, if there are any.

    They listen on this machine's loopback only, also where the user's environment has the network
    of a cluster: whoever reaches their ports is not asked for a password. That is why they meet in
    a file, and torchrun does not start them: its store listens on every network, and unpickles.
    """
    if settings.ranks == 1:
        return
    for library in ("GLOO", "NCCL"):
        os.environ[f"{library}_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",  # figures are on the CPU
        init_method=f"file://{settings.meeting}",
        rank=settings.rank,
        world_size=settings.ranks,
        timeout=timedelta(seconds=settings.exchange_s),
    )


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
