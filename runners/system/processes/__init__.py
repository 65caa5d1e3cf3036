"""Names that the other districts may import."""

from __future__ import annotations

from runners.system.processes.agent_process import AgentProcess, can_tell
from runners.system.processes.atomic_write import atomic_directory, atomic_file
from runners.system.processes.cpu_time import (
    CPU_S,
    CpuMeter,
    add_cpu_time,
    measure_cpu_time,
    read_cpu_time,
    read_tree_times,
)
from runners.system.processes.ports import BACKLOG, PATIENCE_S, free_port, listen, port_of
from runners.system.processes.process_names import PREFIX, is_stale, make_unique_name
from runners.system.processes.process_tags import RUNNING, SANDBOX_TAG, kill_tagged
from runners.system.processes.secret_file import load_secret
from runners.system.processes.service import (
    Service,
    ServiceError,
    ServiceStarter,
    announce,
    child_environment,
    receive_settings,
    wait_for_parent_exit,
)

__all__ = [
    "BACKLOG",
    "CPU_S",
    "PATIENCE_S",
    "PREFIX",
    "RUNNING",
    "SANDBOX_TAG",
    "AgentProcess",
    "CpuMeter",
    "Service",
    "ServiceError",
    "ServiceStarter",
    "add_cpu_time",
    "announce",
    "atomic_directory",
    "atomic_file",
    "can_tell",
    "child_environment",
    "free_port",
    "is_stale",
    "kill_tagged",
    "listen",
    "load_secret",
    "make_unique_name",
    "measure_cpu_time",
    "port_of",
    "read_cpu_time",
    "read_tree_times",
    "receive_settings",
    "wait_for_parent_exit",
]
