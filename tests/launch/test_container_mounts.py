"""An input that the nodes' containers do not mount is a warning, with what to add."""

from __future__ import annotations

import pytest

from launch.cluster_job import make_cluster_job
from launch.container_mounts import find_unmounted
from tests.fakes.cluster_config import a_config

PYXIS = ("launch.container.runtime=pyxis", "launch.container.image=agentrl.sqsh")
OVERLAY = (
    "launch.pod.overlay={spec:{containers:[{name:ray,volumeMounts:[{name:m,mountPath:/models}]}]}}"
)


@pytest.mark.parametrize(
    ("launch", "overrides", "expected"),
    [
        ("slurm", (*PYXIS, "model.path=/shared/GLM"), []),
        ("slurm", ("model.path=/models/GLM",), []),  # the hosts' own file system
        ("slurm", (*PYXIS, "model.path=/models/GLM"), ['["/models:/models:ro"]']),
        ("slurm", (*PYXIS, "model.path=/sharedx/GLM"), ['["/sharedx:/sharedx:ro"]']),
        ("slurm", (*PYXIS, "model.path=/m/a", "launch.container.mounts=['/models:/m:ro']"), []),
        ("slurm", (*PYXIS, "model.path=/m/a", "launch.container.mounts=['/m']"), []),
        (
            "slurm",
            (*PYXIS, "model.path=/models/a", "launch.container.mounts=['/models:/m']"),
            ['["/models:/models:ro"]'],
        ),
        ("slurm", (*PYXIS, "task.path=/data/t.jsonl"), ["task.path=/data/t.jsonl"]),
        ("kubernetes", ("model.path=/models/GLM",), ['["CLAIM:/models:ro"]']),
        ("kubernetes", ("model.path=/models/GLM", "launch.pod.mounts=['m:/models:ro']"), []),
        ("kubernetes", ("model.path=/models/GLM", OVERLAY), []),
        ("ssh", ("model.path=/models/GLM",), []),
    ],
)
def test_only_what_no_mount_has_is_named(
    launch: str, overrides: tuple[str, ...], expected: list[str]
) -> None:
    tokenizer = "model.tokenizer=/shared/tokenizer"
    found = list(find_unmounted(make_cluster_job(a_config(tokenizer, *overrides, launch=launch))))
    assert len(found) == len(expected), found
    for message, part in zip(found, expected, strict=True):
        assert part in message


def test_a_directory_is_named_by_the_key_that_a_user_set() -> None:
    """``model.tokenizer`` is ``model.path`` if it is not given."""
    job = make_cluster_job(a_config(*PYXIS, "model.path=/models/GLM", launch="slurm"))
    [found] = find_unmounted(job)
    assert found.startswith("model.path=/models/GLM ")
