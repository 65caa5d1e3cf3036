"""Built-in tasks in SWE-bench's format, for machines without images: four Python packages of ours,
fourteen issues with their fixes and tests.
"""

from runners.tasks.builtin.build import VERSION, build

__all__ = ["VERSION", "build"]
