"""The native harness: ``harness.py`` starts ``agent.py`` and ``client.py`` in the sandbox."""

from runners.rollouts.harnesses.native.harness import NativeHarness

__all__ = ["NativeHarness"]
