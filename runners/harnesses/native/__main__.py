"""Start the agent by its path: ``python -I -S …/native/__main__.py SETTINGS``, a JSON object."""

import sys

# By its name in the sandbox: only this folder is mounted, not agentrl.
sys.path.append(__file__.rpartition("/native/")[0])
from native.agent import main  # type: ignore[import-not-found]

main(sys.argv[1])
