"""Download of one split of a Hugging Face dataset at one revision.

The files stay in the hub's own cache (``HF_HOME``), so a later run needs no network. Only
``huggingface_hub`` is needed, not ``datasets``: we read the files ourselves.
"""

from __future__ import annotations

import re
from pathlib import Path

from conf.errors import AgentrlError, ExitCode
from runners.tasks.section_keys import name_key

NAME = re.compile(
    r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w./-]+))?(?::(?P<split>[\w.-]+))?"
)
SPLIT = "test"
"""Default split: SWE-bench's datasets have their instances there."""
_FILES = (
    re.compile(r"(?:.*/)?([^/]+)/\d{4}\.parquet"),
    re.compile(r"(?:.*/)?([^/]+?)(?:-\d{5}-of-\d{5})?\.(?:parquet|jsonl)"),
)
"""File names and their split: ``default/test/0000.parquet``; ``data/test-00000-of-00001.parquet``,
``test.jsonl``.
"""
_SHARDS = re.compile(r".*-of-(\d{5})\.\w+")


class HubError(AgentrlError):
    """A dataset cannot be fetched from the hub."""

    exit_code = ExitCode.DATA_REFUSED


class HubUnreachableError(HubError):
    """The hub does not answer, and its cache does not have the dataset."""

    exit_code = ExitCode.SERVICE_GONE


def is_dataset_name(path: str) -> bool:
    """Return whether ``path`` may name a dataset: ``OWNER/NAME``, ``OWNER/NAME@REVISION:SPLIT``."""
    return NAME.fullmatch(path) is not None


def fetch_split(path: str) -> list[Path]:
    """Return the files of a dataset's split in order, downloading those that are not in the cache.

    With a commit as revision, a cached split needs no request. Raises HubError.
    """
    named = NAME.fullmatch(path)
    assert named is not None
    split = named["split"] or SPLIT
    try:
        from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # its client's
    except ImportError as error:
        raise HubError(
            f"{name_key('path')}={path} is not a file; to read it from the hub: "
            "pip install huggingface_hub"
        ) from error
    try:
        found = _download(named["repo"], named["revision"], split)
        splits = [] if found else _list_splits(named["repo"], named["revision"])
    except (HTTPError, OSError, ValueError) as error:
        raise _convert_error(path, named["repo"], named["revision"], error) from error
    if not found:
        has = f"it has {', '.join(splits)}" if splits else "it has no Parquet or JSONL file"
        raise HubError(f"{name_key('path')}={path}: the dataset has no split {split}, {has}")
    if len({file.parent for file in found}) > 1:
        places = ", ".join(f"{file.parent.name}/{file.name}" for file in found[:3])
        raise HubError(
            f"{name_key('path')}={path}: the dataset has several splits {split} "
            f"({places}, …): download the "
            "file you mean and give its path"
        )
    shards = _SHARDS.fullmatch(found[0].name)
    if shards is not None and len(found) < int(shards[1]):  # offline, after an interrupted download
        raise HubUnreachableError(
            f"{name_key('path')}={path}: the cache has {len(found)} of the "
            f"{int(shards[1])} files of the "
            "split, and the hub cannot be reached: fetch them where there is a network"
        )
    return found


def _download(repo: str, revision: str | None, split: str) -> list[Path]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # they would overwrite the live view
    ends = (".*", "-*-of-*.*", "/*.parquet")
    wanted = [f"{folder}{split}{end}" for folder in ("", "*/") for end in ends]
    folder = Path(
        snapshot_download(repo, repo_type="dataset", revision=revision, allow_patterns=wanted)
    )
    every = sorted(file for file in folder.rglob("*") if file.is_file())
    return [file for file in every if _split_name(str(file.relative_to(folder))) == split]


def _list_splits(repo: str, revision: str | None) -> list[str]:
    from huggingface_hub import HfApi

    files = HfApi().dataset_info(repo, revision=revision).siblings or ()
    return sorted({_split_name(file.rfilename) for file in files} - {""})


def _split_name(name: str) -> str:
    """Return the split of a file, "" if it belongs to none."""
    return next((match[1] for form in _FILES if (match := form.fullmatch(name))), "")


def _convert_error(path: str, repo: str, revision: str | None, error: Exception) -> HubError:
    """Return our error for an error of ``huggingface_hub``."""
    from huggingface_hub import errors

    match error:
        case errors.GatedRepoError():
            return HubError(
                f"{name_key('path')}={path}: {repo} is gated: accept its terms on its page, then "
                "set HF_TOKEN to a token of that account"
            )
        case errors.RepositoryNotFoundError():
            return HubError(
                f"{name_key('path')}={path}: there is no such file, and the hub has no "
                f"dataset {repo} that "
                "this HF_TOKEN may read"
            )
        case errors.RevisionNotFoundError():
            return HubError(f"{name_key('path')}={path}: {repo} has no revision {revision}")
    text = " ".join(str(error).split())[:200]
    return HubUnreachableError(
        f"{name_key('path')}={path}: the hub cannot be reached and its cache does not "
        f"have {repo} ({text}): "
        "fetch it where there is a network (huggingface-cli download --repo-type dataset "
        f"{repo}), or give a file"
    )
