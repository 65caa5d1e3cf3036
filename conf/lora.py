"""The low-rank adapters of a configuration: who trains them and who serves them."""

from __future__ import annotations

from conf.schema import Config
from conf.sections.engine import SglangEngineConfig, SglangLaunchEngineConfig
from conf.sections.training import LocalTrainerConfig, LoraConfig


def find_trained_lora(config: Config) -> LoraConfig | None:
    """Return ``trainer.lora`` if adapters are trained, else None."""
    trainer = config.trainer
    if isinstance(trainer, LocalTrainerConfig) and trainer.lora.rank:
        return trainer.lora
    return None


def find_served_lora(config: Config) -> LoraConfig | None:
    """Return ``trainer.lora`` if adapters are trained and the engine takes them as such.

    None also for the embedded engine, which takes the weights into which they are merged.
    """
    if isinstance(config.engine, SglangEngineConfig | SglangLaunchEngineConfig):
        return find_trained_lora(config)
    return None
