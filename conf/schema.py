"""The resolved configuration of one run, checked.

Frozen pydantic models, ``extra="forbid"``; a section that a YAML group chooses has a ``kind``.
Defaults live in the YAML files, not here, so that ``agentrl show`` prints all of them; a default
here marks a key that may be absent.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from conf.rules import agents, engine, gradient, launch, overlap, rewards, slime, steps, training
from conf.sections.engine import EngineConfig
from conf.sections.executor import ExecutorConfig
from conf.sections.faults import FaultsConfig
from conf.sections.gateway import GatewayConfig
from conf.sections.harness import HarnessConfig
from conf.sections.launch import LaunchConfig
from conf.sections.model import ModelConfig
from conf.sections.observe import ObserveConfig
from conf.sections.rollout import RolloutConfig
from conf.sections.run import EvalConfig, RunConfig, SamplingConfig
from conf.sections.sandbox import SandboxConfig
from conf.sections.scenario import ScenarioConfig
from conf.sections.section import Section
from conf.sections.task import EvalTaskConfig, RewardConfig, TaskConfig
from conf.sections.training import FanoutConfig, RoutingReplayConfig, TrainerConfig


class Config(Section):
    """The whole configuration of one run; every instance keeps the rules between its sections."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of tasks, sampling and training. The starting policy of model=tiny does not depend on
    it.
    """
    run: RunConfig
    scenario: ScenarioConfig
    model: ModelConfig
    sampling: SamplingConfig
    engine: EngineConfig
    gateway: GatewayConfig
    sandbox: SandboxConfig
    harness: HarnessConfig
    task: TaskConfig
    eval_task: EvalTaskConfig
    reward: RewardConfig
    fanout: FanoutConfig
    routing_replay: RoutingReplayConfig
    rollout: RolloutConfig
    executor: ExecutorConfig
    trainer: TrainerConfig
    launch: LaunchConfig
    faults: FaultsConfig
    eval: EvalConfig
    observe: ObserveConfig

    @model_validator(mode="after")
    def _check_rules(self) -> Config:
        checks = (
            engine.engine_rules(self.engine, self.model, self.trainer),
            engine.fixed_weights_rules(
                self.engine, self.model, self.run, self.trainer, self.routing_replay
            ),
            engine.endpoint_rules(self.engine, self.model, self.sampling),
            steps.step_rules(self.run, self.task, self.trainer),
            steps.sampling_rules(self.rollout, self.trainer),
            steps.evaluation_rules(self.run, self.task, self.eval_task, self.sampling),
            steps.length_rules(self.run, self.model, self.sampling, self.fanout),
            rewards.reward_rules(self.reward),
            steps.deadline_rules(self.rollout),
            agents.fault_rules(self.faults, self.harness),
            agents.sandbox_rules(self.sandbox, self.gateway, self.rollout),
            agents.harness_rules(self.harness, self.sandbox, self.scenario),
            gradient.sampling_rules(self.run, self.sampling),
            gradient.credit_rules(self.trainer, self.fanout),
            gradient.gdpo_rules(self.run, self.reward, self.trainer),
            gradient.rejection_rules(self.reward, self.trainer),
            gradient.correction_rules(self.trainer),
            training.algorithm_rules(self.trainer),
            training.supervised_rules(self.run, self.trainer),
            training.teacher_rules(self.trainer, self.sampling, self.rollout),
            training.device_rules(self.trainer),
            overlap.overlap_rules(self.run, self.rollout, self.trainer),
            training.sink_rules(self.observe, self.trainer),
            slime.slime_rules(self.trainer, self.launch, self.model, self.task, self.scenario),
            slime.slime_algorithm_rules(self.trainer, self.routing_replay),
            slime.slime_step_rules(self.trainer, self.routing_replay, self.engine),
            slime.slime_engine_rules(self.trainer, self.model, self.launch, self.routing_replay),
            launch.cluster_gateway_rules(self.launch, self.executor, self.gateway),
            launch.launch_rules(self.launch),
        )
        broken = [message for check in checks for is_broken, message in check if is_broken]
        if broken:
            raise ValueError("\n".join(broken))
        return self
