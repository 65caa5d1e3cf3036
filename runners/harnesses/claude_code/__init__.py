"""Claude Code: ``program.py`` has the program, ``settings.py`` how it is started, ``result.py`` how
it ended.
"""

from runners.harnesses.claude_code.host import harness

__all__ = ["harness"]
