"""Serve LoRA adapters with SGLang: load them at a server that has their base.

The adapters of a run have one name, so that every request can name them whatever their version. A
server loads no second one of a name, hence the former is unloaded first; nothing runs meanwhile.
SGLang keys its prefix cache by the loading, so no prefix of former adapters is read again.

The contract is that of SGLang 0.5.15 (``http_server.py``, ``lora/lora_manager.py``): POST
``/load_lora_adapter`` and ``/unload_lora_adapter`` answer ``{success, error_message}`` with status
200 or 400; ``/generate`` takes the name in ``lora_path``; the loading leaves ``weight_version`` as
it is, which ``/update_weight_version`` sets.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from conf.sections.training import LoraConfig
from runners.engines.connection import EngineClient
from runners.engines.contract import EngineError
from runners.records.checkpoints import ADAPTER

LOAD_PATH = "/load_lora_adapter"
UNLOAD_PATH = "/unload_lora_adapter"
VERSION_PATH = "/update_weight_version"


def adapter_arguments(lora: LoraConfig) -> list[str]:
    """Return the arguments of ``sglang.launch_server`` without which it loads no such adapters."""
    return [
        *("--enable-lora", "--max-lora-rank", str(lora.rank)),
        *("--lora-target-modules", *lora.targets),
        # memory for those of the run, and for requests without any: by default it is for eight
        *("--max-loras-per-batch", "2"),
    ]


async def load_adapter(
    engine: EngineClient, name: str, directory: Path, version: int, *, deadline_s: float
) -> None:
    """Replace the adapters of a name by those in ``directory/adapter``; doing it twice is safe.

    Generations report ``version`` from then on. Raises EngineError, also after ``deadline_s``.
    """
    clock = asyncio.get_running_loop().time
    ends = clock() + deadline_s
    try:
        await engine.request_json(UNLOAD_PATH, {"lora_name": name}, deadline_s=deadline_s)
    except EngineError as error:
        if error.status != 400:  # 400: none of this name is loaded
            raise
    body = {"lora_name": name, "lora_path": str(directory / ADAPTER)}
    await engine.request_json(LOAD_PATH, body, deadline_s=ends - clock())
    # aborting is its default, and nothing of ours runs
    numbered = {"new_version": str(version), "abort_all_requests": False}
    await engine.request_json(VERSION_PATH, numbered, deadline_s=ends - clock())
