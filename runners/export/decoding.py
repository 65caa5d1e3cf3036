"""The tokenizer of a run that has ended, for the text of its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from conf.sections.model import TinyModelConfig
from runners.export.contract import Decode
from runners.gateway.tokenizer import load_tokenizer
from runners.training.bootstrap import tiny_directory


def find_decode(config: Mapping[str, Any]) -> Decode | None:
    """Return the ``decode`` of a run's tokenizer; None if it is not there any more."""
    model = config.get("model", {})
    directory = model.get("tokenizer")
    if directory is None and model.get("kind") == "tiny":
        try:
            tiny = TinyModelConfig.model_validate(model)
        except ValidationError:  # written by another version of agentrl
            return None
        directory = tiny_directory(tiny, config["scenario"]["kind"])
    if directory is None or not (Path(directory) / "tokenizer.json").is_file():
        return None
    return load_tokenizer(Path(directory)).decode
