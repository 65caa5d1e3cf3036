"""Generated tasks: small git repositories from a seed, each with one bug and real tests."""

from runners.tasks.bugfix.family import VERSION, build

__all__ = ["VERSION", "build"]
