"""Hosts at which the fix of a task can be had: its agent's sandbox must not reach them.

Repositories of real projects are public, and so are their later releases with the fix in them. The
tasks that are generated here are in no repository but their own.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from runners.tasks.contract import HarborVerifier, Task, UnittestIds
from runners.tasks.harbor.environment import find_directory

REPOSITORY_HOSTS = ("github.com", "githubusercontent.com", "githubassets.com", "ghcr.io")
"""Of SWE-bench's and SWE-bench-Pro's repositories, with their subdomains."""
PACKAGE_INDEXES = (
    *("pypi.org", "pythonhosted.org", "npmjs.org", "npmjs.com", "yarnpkg.com"),
    *("golang.org", "crates.io", "anaconda.org", "conda.io", "jsdelivr.net", "unpkg.com"),
)


def denied_hosts(task: Task) -> tuple[str, ...]:
    """Return them, each with its subdomains."""
    if isinstance(task.grading, UnittestIds):
        return ()
    allowed = _task_hosts(task)
    own = urlsplit(task.origin.source).hostname if task.origin is not None else None
    denied = (*REPOSITORY_HOSTS, *PACKAGE_INDEXES, *((own,) if own else ()))
    return tuple(host for host in denied if host not in allowed)


def _task_hosts(task: Task) -> tuple[str, ...]:
    """Return the hosts that a Harbor task itself lets its agent reach, by name."""
    if not isinstance(task.grading, HarborVerifier):
        return ()
    return find_directory(task).config.agent_network.hosts
