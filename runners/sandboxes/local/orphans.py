"""What killed drivers left of their sandboxes on this machine, whichever run they drove."""

from __future__ import annotations

from runners.processes.process_names import is_stale
from runners.processes.process_tags import SANDBOX_TAG, kill_tagged
from runners.sandboxes.local import resource_limits as cgroup
from runners.sandboxes.local import shared_memory as memory


def end_orphans() -> None:
    """Kill its processes, then remove its control groups and directories; raises OSError if one
    does not go.
    """
    cgroup.end_orphans()  # first: a process may clear its environment, but not leave its group
    kill_tagged(SANDBOX_TAG, lambda mark: is_stale(mark.partition("/")[0]))
    memory.remove_orphans()
