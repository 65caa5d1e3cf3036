"""The native harness: ``agent.py`` and ``wire.py`` run inside the sandbox, ``host.py`` starts them.

Keep this file free of imports: the sandboxed agent imports the package without agentrl installed.
"""
