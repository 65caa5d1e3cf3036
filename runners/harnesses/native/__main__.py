"""Start the agent by this file's path: ``python -I -S …/native/__main__.py MAX_TURNS MAX_TOKENS``."""

import sys

sys.path.append(__file__.rpartition("/native/")[0])
from native.agent import main  # noqa: E402

main(int(sys.argv[1]), int(sys.argv[2]))
