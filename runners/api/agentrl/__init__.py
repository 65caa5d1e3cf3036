"""Names that a plug-in imports: the contracts that it keeps, and what it is given; and the client
of the gateway.

Everything else of agentrl may change without notice; these names do not. docs/extending.md,
docs/gateway.md.
"""

from runners.export.contract import ExportedRollout, ExportedRun, ExporterPlugin
from runners.gateway.client import GatewayError
from runners.gateway.gateway_client import AttachedSession, FinishedSession, GatewayClient
from runners.harnesses.contract import Harness, HarnessContext, HarnessResult
from runners.observe.sinks import MetricsSink
from runners.rollouts.reward import Reward
from runners.sandboxes.contract import CommandResult, Sandbox, SandboxError
from runners.sandboxes.remote.provided import MachineProvider, MachineRequest
from runners.tasks.contract import DecidingTest, Patch, Task, Verdict, VerdictKind
from runners.tasks.custom_reader import DatasetReader
from runners.tasks.graders.custom import Scorer
from runners.tasks.rollout_result import RolloutResult
from runners.training.advantages import AdvantageEstimator
from runners.training.fanout import SharePolicy
from runners.trajectory.outcome import Outcome, OutcomeCode
from runners.trajectory.record import Segment
from runners.trajectory.session_summary import SessionSummary

__all__ = [
    "AdvantageEstimator",
    "AttachedSession",
    "CommandResult",
    "DatasetReader",
    "DecidingTest",
    "ExportedRollout",
    "ExportedRun",
    "ExporterPlugin",
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
    "Reward",
    "RolloutResult",
    "Sandbox",
    "SandboxError",
    "Scorer",
    "Segment",
    "SessionSummary",
    "SharePolicy",
    "Task",
    "Verdict",
    "VerdictKind",
]
