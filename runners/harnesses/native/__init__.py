"""The native harness: ``harness.py`` starts ``agent.py`` and ``client.py`` in the sandbox."""

from runners.harnesses.native.harness import NativeHarness

__all__ = ["NativeHarness"]
