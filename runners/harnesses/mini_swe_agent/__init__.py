"""mini-swe-agent: ``program.py`` has the package, ``start.py`` runs it inside, ``settings.py`` how
it is started, ``result.py`` how it ended.
"""

from runners.harnesses.mini_swe_agent.host import harness

__all__ = ["harness"]
