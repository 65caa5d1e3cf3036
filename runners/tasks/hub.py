"""A dataset of the Hugging Face hub: the files of one split at one revision, in the hub's own cache
(``HF_HOME``), from which they come again without a network.

``huggingface_hub`` alone is needed: what it fetches are the files that we read anyway.
"""

from __future__ import annotations

import re
from pathlib import Path

from conf.errors import AgentrlError, ExitCode

NAME = re.compile(
    r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w./-]+))?(?::(?P<split>[\w.-]+))?"
)
SPLIT = "test"
"""Where SWE-bench's datasets have their instances."""
_FILES = (
    re.compile(r"(?:.*/)?([^/]+)/\d{4}\.parquet"),
    re.compile(r"(?:.*/)?([^/]+?)(?:-\d{5}-of-\d{5})?\.(?:parquet|jsonl)"),
)
"""``default/test/0000.parquet``; ``data/test-00000-of-00001.parquet``, ``test.jsonl``."""
_SHARDS = re.compile(r".*-of-(\d{5})\.\w+")


class HubError(AgentrlError):
    """A dataset cannot be had from the hub."""

    exit_code = ExitCode.DATA_REFUSED


class HubUnreachableError(HubError):
    """The hub does not answer, and the cache has not got the dataset."""

    exit_code = ExitCode.SERVICE_GONE


def is_dataset_name(path: str) -> bool:
    """Whether ``path`` may name a dataset: ``OWNER/NAME``, ``OWNER/NAME@REVISION:SPLIT``."""
    return NAME.fullmatch(path) is not None


def fetch_split(path: str) -> list[Path]:
    """Return the files of a dataset's split, in their order; fetched unless they are in the cache.

    A commit as revision is asked for once. Raises HubError.
    """
    named = NAME.fullmatch(path)
    assert named is not None
    split = named["split"] or SPLIT
    try:
        from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # its client's
    except ImportError as error:
        raise HubError(
            f"task.path={path} is no file; to read it from the hub: pip install huggingface_hub"
        ) from error
    try:
        found = _download(named["repo"], named["revision"], split)
        splits = [] if found else _list_splits(named["repo"], named["revision"])
    except (HTTPError, OSError, ValueError) as error:
        raise _hub_error(path, named["repo"], named["revision"], error) from error
    if not found:
        has = f"it has {', '.join(splits)}" if splits else "it has no Parquet or JSONL file"
        raise HubError(f"task.path={path}: the dataset has no split {split}, {has}")
    if len({file.parent for file in found}) > 1:
        places = ", ".join(f"{file.parent.name}/{file.name}" for file in found[:3])
        raise HubError(
            f"task.path={path}: the dataset has several splits {split} ({places}, …): download the "
            "file you mean and give its path"
        )
    shards = _SHARDS.fullmatch(found[0].name)
    if shards is not None and len(found) < int(shards[1]):  # a download that was cut off, offline
        raise HubUnreachableError(
            f"task.path={path}: the cache has {len(found)} of the {int(shards[1])} files of the "
            "split, and the hub cannot be reached: fetch them where there is a network"
        )
    return found


def _download(repo: str, revision: str | None, split: str) -> list[Path]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # they would write over the live view
    ends = (".*", "-*-of-*.*", "/*.parquet")
    wanted = [f"{folder}{split}{end}" for folder in ("", "*/") for end in ends]
    folder = Path(
        snapshot_download(repo, repo_type="dataset", revision=revision, allow_patterns=wanted)
    )
    every = sorted(file for file in folder.rglob("*") if file.is_file())
    return [file for file in every if _split_of(str(file.relative_to(folder))) == split]


def _list_splits(repo: str, revision: str | None) -> list[str]:
    from huggingface_hub import HfApi

    files = HfApi().dataset_info(repo, revision=revision).siblings or ()
    return sorted({_split_of(file.rfilename) for file in files} - {""})


def _split_of(name: str) -> str:
    """Return the split that a file is of; "" for what is no part of one."""
    return next((match[1] for form in _FILES if (match := form.fullmatch(name))), "")


def _hub_error(path: str, repo: str, revision: str | None, error: Exception) -> HubError:
    """Turn what ``huggingface_hub`` raises into ours."""
    from huggingface_hub import errors

    match error:
        case errors.GatedRepoError():
            return HubError(
                f"task.path={path}: {repo} is gated: accept its terms on its page, then "
                "set HF_TOKEN to a token of that account"
            )
        case errors.RepositoryNotFoundError():
            return HubError(
                f"task.path={path}: there is no such file, and the hub has no dataset {repo} that "
                "this HF_TOKEN may read"
            )
        case errors.RevisionNotFoundError():
            return HubError(f"task.path={path}: {repo} has no revision {revision}")
    text = " ".join(str(error).split())[:200]
    return HubUnreachableError(
        f"task.path={path}: the hub cannot be reached and its cache has not got {repo} ({text}): "
        "fetch it where there is a network (huggingface-cli download --repo-type dataset "
        f"{repo}), or give a file"
    )
