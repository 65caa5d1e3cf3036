"""SlotFactory on this machine: a directory of the host, a control group, namespaces over both.

Invariant: a room is as its isolation makes it before anything of an agent is in it; what it is for
is decided later.
"""

from __future__ import annotations

import itertools

from conf.sections.sandbox import LocalSandboxConfig
from runners.processes.process_tags import SANDBOX_TAG
from runners.sandboxes.local.boot import Launcher, Start, boot
from runners.sandboxes.local.isolation import Isolation, Place, set_limits
from runners.sandboxes.local.resource_limits import PidsControlGroup
from runners.sandboxes.local.seccomp import SeccompFilter
from runners.sandboxes.tree import remove_tree


class SlotFactory:
    """What the sandboxes of a backend are made in."""

    def __init__(
        self,
        isolation: Isolation,
        config: LocalSandboxConfig,
        groups: PidsControlGroup | None,
        deny_list: SeccompFilter,
        name: str,
    ) -> None:
        """``name`` is the backend's; it marks every process."""
        self.isolation = isolation
        self._config = config
        self._groups = groups
        self._deny_list = deny_list
        self._name = name
        self._numbers = itertools.count()

    def make(self, place: Place) -> None:
        """Make the directories, with an empty workspace; blocks, and raises OSError."""
        place.home.mkdir(parents=True)
        place.workspace.mkdir()
        self.isolation.prepare(place)
        if self._groups is not None:
            self._groups.add(place.home.name)

    def remove(self, place: Place) -> None:
        """Remove them, when nothing runs there any more; blocks, and raises OSError."""
        if self._groups is not None:
            self._groups.remove(place.home.name)
        remove_tree(place.home)

    async def boot(self, place: Place, *, listens: bool) -> Launcher:
        """Return namespaces for one command; raises SandboxError."""
        namespaced = self.isolation.namespaced
        mark = f"{self._name}/{next(self._numbers)}"

        def admit(pid: int) -> None:
            if self._groups is not None:
                self._groups.admit(place.home.name, pid)

        with self._deny_list.opened() as handle:
            deny = handle if namespaced else None
            start = Start(
                argv=lambda launch, tell: self.isolation.command(place, launch, deny, tell),
                env={**self.isolation.environment(place), SANDBOX_TAG: mark},
                cwd=None if namespaced else place.workspace,
                namespaced=namespaced,
                listens=listens,
                admit=admit,
                limit=lambda pid: set_limits(pid, self._config, namespaced=namespaced),
                inherit=() if deny is None else (deny,),
            )
            return await boot(start)
