"""The native harness: ``agent.py`` and ``wire.py`` run in the sandbox, ``host.py`` starts them."""

from runners.harnesses.native.host import NativeHarness

__all__ = ["NativeHarness"]
