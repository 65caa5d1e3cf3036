"""mini-swe-agent: the harness, its PyPI package, and the program that runs it inside a sandbox."""
