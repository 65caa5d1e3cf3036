"""Codex: ``program.py`` has the program, ``settings.py`` how it is started, ``result.py`` how it
ended.
"""

from runners.harnesses.codex.host import harness

__all__ = ["harness"]
