"""Names that programs import: campaigns and evaluations, the reader of a run, the contracts of
plug-ins and what they are given, the client of the gateway.

Everything else of agentrl may change without notice; these names do not. docs/python.md,
docs/extending.md, docs/gateway.md.
"""

from agentrl.campaigns import FinishedEvaluation, FinishedRun, evaluate, rollout, run
from agentrl.run_reader import RunReader, open_run
from conf.errors import AgentrlError, ConfigError, ExitCode
from runners.gateway.gateway_client import AttachedSession, FinishedSession, GatewayClient
from runners.gateway.refusal import GatewayError
from runners.observe.export import ExportedRollout, ExportedRun, ExporterPlugin
from runners.observe.sinks import MetricsSink
from runners.records.outcome import Outcome, OutcomeCode
from runners.records.record import RolloutRecord, Segment, Turn
from runners.records.session_summary import SessionSummary
from runners.records.store import EvaluationRow, StepRow
from runners.rollouts.contract import Harness, HarnessContext, HarnessResult
from runners.rollouts.reward import Reward, RewardParts
from runners.sandboxes.contract import CommandResult, Sandbox, SandboxError
from runners.sandboxes.remote import MachineProvider, MachineRequest
from runners.tasks.contract import DecidingTest, Patch, Task, Verdict, VerdictKind
from runners.tasks.grading import RolloutResult, Scorer
from runners.tasks.sets import Curriculum, DatasetReader, TaskDraw, TaskHistory, TaskSampler
from runners.training.advantages import AdvantageEstimator
from runners.training.contract import PolicyLoss, TokenLosses, TrainedTokens
from runners.training.step_samples import SharePolicy

__all__ = [
    "AdvantageEstimator",
    "AgentrlError",
    "AttachedSession",
    "CommandResult",
    "ConfigError",
    "Curriculum",
    "DatasetReader",
    "DecidingTest",
    "EvaluationRow",
    "ExitCode",
    "ExportedRollout",
    "ExportedRun",
    "ExporterPlugin",
    "FinishedEvaluation",
    "FinishedRun",
    "FinishedSession",
    "GatewayClient",
    "GatewayError",
    "Harness",
    "HarnessContext",
    "HarnessResult",
    "MachineProvider",
    "MachineRequest",
    "MetricsSink",
    "Outcome",
    "OutcomeCode",
    "Patch",
    "PolicyLoss",
    "Reward",
    "RewardParts",
    "RolloutRecord",
    "RolloutResult",
    "RunReader",
    "Sandbox",
    "SandboxError",
    "Scorer",
    "Segment",
    "SessionSummary",
    "SharePolicy",
    "StepRow",
    "Task",
    "TaskDraw",
    "TaskHistory",
    "TaskSampler",
    "TokenLosses",
    "TrainedTokens",
    "Turn",
    "Verdict",
    "VerdictKind",
    "evaluate",
    "open_run",
    "rollout",
    "run",
]
