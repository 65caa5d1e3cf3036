"""Make the tiny policy on this machine: tokenizer, demonstrations, supervised warm-up."""

from runners.training.bootstrap.tiny import BootstrapError, ensure_tiny, tiny_directory

__all__ = ["BootstrapError", "ensure_tiny", "tiny_directory"]
