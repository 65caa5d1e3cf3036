"""Configuration of the tasks (``task=…``, ``eval_task=…``) and of their reward (``reward=…``)."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, PositiveInt, Tag

from conf.sections.plugin import BY_NAME, SELECT, ByTarget, PluginConfig, by_name
from conf.sections.section import Follows, Section, expecting

FormatName = Literal[
    "auto",
    "swebench",
    "swebench_live",
    "swebench_pro",
    "swe_smith",
    "swe_gym",
    "swe_rebench",
    "swe_rebench_v2",
    "swe_lego",
    "openswe",
    "scale_swe",
    "r2e_gym",
    "multi_swe",
    "eval_cmd",
    "f2p_script",
]
"""Row schemas (``runners/tasks/schemas``)."""
TaskFormat = Annotated[
    Annotated[FormatName, Tag(BY_NAME)] | ByTarget,
    SELECT,
    by_name("readers", *get_args(FormatName)),
]
GraderName = Literal["auto", "official", "own"]
TaskGrader = Annotated[
    Annotated[GraderName, Tag(BY_NAME)] | ByTarget,
    SELECT,
    by_name("graders", *get_args(GraderName)),
]


HeldOutKinds = Literal["trained", "new"]


class BugfixTaskConfig(Section):
    """Generated git repositories, each with one bug and real tests."""

    kind: Literal["bugfix"]
    train_tasks: PositiveInt = 512
    """Tasks in the training split."""
    held_out_tasks: PositiveInt = 128
    """Tasks in the held-out split, which shares no repository with the training split."""
    held_out_kinds: HeldOutKinds = "trained"
    """Kinds of their bugs. ``trained``: those of the training split; ``new``: others, of which
    neither training nor the starting policy's demonstrations show a fix.
    """
    canaries: Literal[0, 1, 2] = 1
    """Check solved patches with canaries: changed copies of the tests, which a right solution must
    fail. 0: off; 1: one per solved patch; 2: also the same tests in other words.
    """


class GradedSet(Section):
    """Keys of the grading of a set's tasks."""

    grader: TaskGrader = "auto"
    """Judge of rows with an eval script. ``official``: the package ``swebench`` reads the log;
    ``own``: our pytest plugin reports; ``auto``: official for SWE-bench's own rows, and for tests
    of other programs than pytest, if the package is installed. Or a plug-in, which grades every row
    of the set.
    """
    flaky_reruns: Annotated[int, Field(ge=0)] = 1
    """Further gradings when only pass-to-pass tests fail, which may be chance; one good run
    decides.
    """
    canaries: Literal[0, 1, 2] = 1
    """Check solved patches with canaries: changed copies of the tests, which a right solution must
    fail. 0: off; 1: one per solved patch, and where an exit code decides also the same tests in
    other words; 2: always both.
    """


class TaskFileConfig(GradedSet):
    """A set of tasks in any of the row schemas."""

    kind: str
    path: str | None
    """JSONL, JSON or Parquet file, Harbor task directories, or a dataset on the hub:
    ``OWNER/NAME[@REVISION][:SPLIT]``.
    """
    format: TaskFormat = "auto"
    """Schema of the rows (docs/tasks.md). ``auto``: detected for each row by fields that no other
    schema has; a row that could be two is refused. Or a plug-in that reads ``path`` and yields rows
    of these schemas.
    """
    repositories: Path | None = None
    """Directory of clones (``owner/name``, ``owner__name.git`` or ``….bundle``), for rows without
    ``repo_path``.
    """
    exclude: Literal["known_bad"] | Path | None = None
    """File of tasks that are set aside: a ``calibration.json`` of ``agentrl tasks check``, or a
    text with one id or glob a line, its reason after ``#``. ``known_bad``: published tasks whose
    reference patch fails for everybody, of which any may be missing.
    """


class SwebenchTaskConfig(TaskFileConfig):
    """SWE-bench instances."""

    kind: Literal["swebench"]
    path: str | None = None
    """JSONL, JSON or Parquet file, Harbor task directories, or a dataset on the hub:
    ``OWNER/NAME[@REVISION][:SPLIT]``; null: a small built-in set.
    """


class JsonlTaskConfig(TaskFileConfig):
    """Tasks from a file, for training."""

    kind: Literal["jsonl"]
    path: str
    held_out_tasks: Annotated[int, Field(ge=0), Follows("${run.eval_tasks}")]
    """Number of tasks that are held out; the seed and their ids choose them."""


SetName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"),
    expecting("a name of letters, digits, ., _ and -"),
]


class MixedSetConfig(Section):
    """One set of a mixture."""

    path: str
    """As ``task.path`` of ``task=jsonl``."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of the tasks that are drawn, relative to the weights of the other sets."""
    name: SetName | None = None
    """Name in metrics and reports; null: that of the file or dataset."""
    format: TaskFormat = "auto"
    repositories: Path | None = None
    exclude: Literal["known_bad"] | Path | None = None

    @property
    def label(self) -> str:
        """Its name: that of the file, or of the dataset without owner, revision and split."""
        place = PurePosixPath(self.path)
        is_file = place.suffix in (".jsonl", ".json", ".parquet")
        found = place.stem if is_file else re.split("[@:]", place.name)[0]
        return self.name or re.sub(r"[^A-Za-z0-9._-]", "-", found)


def _check_names(sets: tuple[MixedSetConfig, ...]) -> tuple[MixedSetConfig, ...]:
    shared = [name for name, count in Counter(each.label for each in sets).items() if count > 1]
    if shared:
        raise ValueError(f"has several sets called {', '.join(shared)}: give each its own name")
    return sets


class MixtureConfig(GradedSet):
    """Several sets of tasks."""

    kind: Literal["mixture"]
    sets: Annotated[tuple[MixedSetConfig, ...], Field(min_length=1), AfterValidator(_check_names)]
    """The sets: ``[{path:a.jsonl,weight:3},{path:b.jsonl,weight:1}]``. ``weight`` (1 by default):
    share of the tasks that are drawn, or in an evaluation of ``run.eval_tasks``; also ``name``,
    ``format``, ``repositories`` and ``exclude``, which may be absent.
    """


class MixtureTaskConfig(MixtureConfig):
    """Several sets of tasks, for training."""

    held_out_tasks: Annotated[int, Field(ge=0), Follows("${run.eval_tasks}")]
    """Number of tasks, of all sets together, that are held out."""


TaskConfig = Annotated[
    BugfixTaskConfig | SwebenchTaskConfig | JsonlTaskConfig | MixtureTaskConfig,
    Field(discriminator="kind"),
]


class HeldOutEvalTaskConfig(Section):
    """Evaluation on the held-out tasks of the training set."""

    kind: Literal["held_out"]


class JsonlEvalTaskConfig(TaskFileConfig):
    """Evaluation on a set of its own, from a file."""

    kind: Literal["jsonl"]
    path: str


class MixtureEvalTaskConfig(MixtureConfig):
    """Evaluation on several sets; the weights share ``run.eval_tasks`` among them."""


EvalTaskConfig = Annotated[
    HeldOutEvalTaskConfig | SwebenchTaskConfig | JsonlEvalTaskConfig | MixtureEvalTaskConfig,
    Field(discriminator="kind"),
]
"""The tasks on which a campaign evaluates its policy."""


class VerdictRewardConfig(Section):
    """Reward from the graded tests; penalties are off unless they are set."""

    kind: Literal["tests"]
    solved: float = 1.0
    """Reward if all fail-to-pass and pass-to-pass tests pass."""
    unsolved: float = 0.0
    """Reward if they do not."""
    partial_credit: Annotated[float, Field(ge=0)] = 0.0
    """Added to ``unsolved``, times the share of fail-to-pass tests that pass, if every pass-to-pass
    test passes. 0: a part of a task pays nothing.
    """
    turn_penalty: Annotated[float, Field(ge=0)] = 0.0
    """Subtracted from a rollout of ``turn_budget`` turns or more; fewer cost in proportion."""
    turn_budget: Annotated[PositiveInt, Follows("${harness.max_turns}")]
    """Turns that cost the whole ``turn_penalty``."""
    length_penalty: Annotated[float, Field(ge=0)] = 0.0
    """Subtracted from a rollout of ``token_budget`` sampled tokens or more; fewer cost in
    proportion.
    """
    token_budget: Annotated[PositiveInt, Follows("${model.max_context_tokens}")]
    """Sampled tokens that cost the whole ``length_penalty``."""
    overlong_penalty: Annotated[float, Field(ge=0)] = 0.0
    """Subtracted from a rollout of ``token_budget`` sampled tokens or more, and in proportion from
    one that ends in the budget's last ``overlong_tokens`` (DAPO, arXiv 2503.14476).
    """
    overlong_tokens: Annotated[
        PositiveInt, Follows("${greatest:1,${fraction:${reward.token_budget},1,5}}")
    ]
    """Sampled tokens over which ``overlong_penalty`` rises."""
    malformed_penalty: Annotated[float, Field(ge=0)] = 0.0
    """Taken off once if the rollout contains a malformed tool call."""


class CustomRewardConfig(PluginConfig):
    """Reward of a plug-in (``runners/rollouts/reward.py``)."""

    kind: Literal["custom"]
    part_weights: dict[str, float] = Field(default_factory=dict)
    """Weight of each part that the plug-in returns, by its name; 1 for one that is not named."""


RewardConfig = Annotated[VerdictRewardConfig | CustomRewardConfig, Field(discriminator="kind")]


PENALTIES = ("turn_penalty", "length_penalty", "overlong_penalty", "malformed_penalty")
"""Keys of ``VerdictRewardConfig`` that take something off."""


def sum_penalties(reward: VerdictRewardConfig) -> float:
    """Return the most that a rollout can lose."""
    most: float = sum(getattr(reward, name) for name in PENALTIES)
    return most


def name_penalties(reward: VerdictRewardConfig) -> str:
    """Return the keys of the penalties that are on, as a sum."""
    return " + ".join(f"reward.{name}" for name in PENALTIES if getattr(reward, name))


def find_part_weights(reward: RewardConfig) -> dict[str, float]:
    """Return the weight of a reward's parts by name; one that is not there weighs 1."""
    if not isinstance(reward, VerdictRewardConfig):
        return reward.part_weights
    weights = {name: getattr(reward, name) for name in PENALTIES}
    return {"tests": reward.solved - reward.unsolved, **weights}


def pays_parts(reward: RewardConfig) -> bool:
    """Return whether a task that is solved in part may pay more than one that is not at all."""
    return not isinstance(reward, VerdictRewardConfig) or reward.partial_credit > 0
