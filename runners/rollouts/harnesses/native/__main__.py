"""Start the agent by its path: ``python -I -S …/native/__main__.py SETTINGS``, a JSON object."""

import _ctypes
import sys

PR_SET_DUMPABLE = 4

# The agent's key must not be found in /proc by the commands that it runs as its own user. Not by
# ctypes, which takes 20 ms to import.
prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
_ctypes.call_function(prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0))

# By its name in the sandbox: only this folder is mounted, not agentrl.
sys.path.append(__file__.rpartition("/native/")[0])
from native.agent import main  # type: ignore[import-not-found]  # noqa: E402

main(sys.argv[1])
