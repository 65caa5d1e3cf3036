"""What lies below slime's own code: Ray as threads, and modules of GPUs that do nothing.

With it ``slime.ray.rollout.RolloutManager`` and both training loops run as they are, without Ray,
Megatron or SGLang (slime 624b824).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

ABSENT = (
    *("sglang", "sglang_router", "megatron", "wandb", "triton", "torchvision", "mbridge"),
    *("torch_memory_saver", "slime.backends.sglang_utils"),
)
RAY = ("ray.util", "ray.actor", "ray.exceptions")
"""Packages that are replaced."""


class _Anything(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Finder(MetaPathFinder, Loader):
    def __init__(self, *, replace_ray: bool) -> None:
        self._absent = ABSENT + (RAY if replace_ray else ())

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find every module that is replaced."""
        if any(name == each or name.startswith(f"{each}.") for each in self._absent):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module that has every name."""
        return _Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: it is complete."""


class Handle:
    """An actor: its calls run one after the other on one thread, as Ray's without concurrency."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._made = self._pool.submit(make)

    def __getattr__(self, name: str) -> Any:
        def remote(*given: Any, **named: Any) -> Future[Any]:
            return self._pool.submit(lambda: getattr(self._made.result(), name)(*given, **named))

        method = MagicMock()
        method.remote = remote
        return method


class Actor:
    """A class behind ``ray.remote``."""

    def __init__(self, cls: Callable[..., Any]) -> None:
        self.cls = cls

    def options(self, **_: Any) -> Actor:
        """Return itself: there are no resources."""
        return self

    def remote(self, *given: Any, **named: Any) -> Handle:
        """Start an actor."""
        return Handle(lambda: self.cls(*given, **named))


def remote(cls: Callable[..., Any] | None = None, **_: Any) -> Any:
    """Be ``ray.remote``."""
    return Actor if cls is None else Actor(cls)


def get(found: Any) -> Any:
    """Be ``ray.get``."""
    if isinstance(found, list):
        return [get(each) for each in found]
    return found.result() if isinstance(found, Future) else found


def install(*, replace_ray: bool = True) -> None:
    """Make slime importable; a real Ray stays with ``replace_ray=False``."""
    sys.meta_path.insert(0, _Finder(replace_ray=replace_ray))
    if replace_ray:
        ray: Any = _Anything("ray")
        ray.__path__ = []
        ray.remote, ray.get, ray.put = remote, get, lambda value, **_: value
        sys.modules["ray"] = ray


def install_in_worker() -> None:
    """Make slime importable in a process of a real Ray (``worker_process_setup_hook``)."""
    sys.path.append(os.environ["SLIME_SOURCE"])
    install(replace_ray=False)
