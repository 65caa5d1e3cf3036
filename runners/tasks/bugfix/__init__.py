"""A generated, seeded family of small git repositories, each with one bug and real tests."""

from runners.tasks.bugfix.family import VERSION, build

__all__ = ["VERSION", "build"]
