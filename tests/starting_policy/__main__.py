"""Make the starting policy into a directory: ``python -m tests.starting_policy DIRECTORY``.

It takes some 10 minutes of one core. To ship another one, replace the files of
``runners/records/tiny_policy`` by those of the directory and write the printed SHA-256 into
``runners/records/checkpoints.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from runners.records.checkpoints import hash_files
from tests.starting_policy.making import RECIPE, draw_all, make_policy


def main() -> None:
    """Make the policy and print its digest."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True)

    def report(phase: str, done: int, total: int) -> None:
        if done % 20 == 0 or done == total:
            print(f"{phase}: {done} of {total}", file=sys.stderr)

    print(make_policy(directory, draw_all(RECIPE), RECIPE, report), file=sys.stderr)
    print(hash_files(directory))


if __name__ == "__main__":
    main()
