"""Build slime's command line for a job; every flag is checked against slime's own parsers."""

from __future__ import annotations

from pathlib import PurePosixPath

from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.training import SlimeTrainerConfig
from launch import flags
from launch.cluster_job import ClusterJob
from launch.megatron_arguments import Arguments, megatron_arguments
from launch.topology import Topology

GENERATE = "runners.campaigns.slime.entry_points.generate_rollout"
DATA_SOURCE = "runners.campaigns.slime.data_source.RunDataSource"
REWARDS = "runners.campaigns.slime.entry_points.post_process_rewards"
EVALUATE = "runners.campaigns.slime.entry_points.evaluate"
INSTALL = "runners.campaigns.slime.megatron.hooks.install"
BEGIN_UPDATE = "runners.campaigns.slime.megatron.hooks.begin_update"
TRUNCATE = "runners.campaigns.slime.megatron.hooks.truncate_ratios"
LOSS = "runners.campaigns.slime.megatron.hooks.policy_loss"
"""The functions of agentrl that slime calls, the last four in its training processes."""
IMPOSSIBLE = {
    "--colocate": "follows from trainer.rollout_nodes=0",
    "--log-passrate": "counts samples, and a rollout has several: agentrl's metrics have the rates",
    "--group-rm": "reads one reward per sample, and a rollout has several samples",
    "--partial-rollout": "gives half a rollout back as tokens, and its sandbox is gone: "
    "run.overlap=stream lets it go on under new weights",
    **dict.fromkeys(
        ("--over-sampling-batch-size", "--dynamic-sampling-filter-path", "--buffer-filter-path"),
        "is of another rollout function: rollout.replace_flat, spare_groups, oversample_groups",
    ),
    **dict.fromkeys(
        ("--custom-generate-function-path", "--custom-rm-path", "--rollout-sample-filter-path"),
        "is of another rollout function: tasks, rewards and segments have keys of their own",
    ),
    "--prompt-data": "is not read: tasks come from task.path",
}
"""Flags of slime that would end the job, or do nothing, with the reason."""


def job_dir(job: ClusterJob) -> PurePosixPath:
    """Return the job's directory, as every node sees it."""
    return PurePosixPath(job.launch.shared_dir) / job.launch.name


def train_script(config: Config) -> str:
    """Return the script of slime that drives the job: one of two loops."""
    return "train.py" if config.run.overlap == "none" else "train_async.py"


def converted_checkpoint(job: ClusterJob) -> PurePosixPath:
    """Return the path of the checkpoint in Megatron's format."""
    assert job.model.path is not None  # by conf.rules.slime
    # The layers of multi-token prediction are in it only if they are trained.
    suffix = "_mtp_torch_dist" if job.model.speculative.train_weight else "_torch_dist"
    return PurePosixPath(job.launch.shared_dir) / f"{job.model.path.name}{suffix}"


def build_slime_arguments(job: ClusterJob, topology: Topology) -> Arguments:
    """Return slime's arguments; raises ConfigError with every flag that its parsers refuse."""
    arguments = {
        **_places(job, topology),
        **_checkpoints(job),
        **megatron_arguments(job.architecture),
        **_drafting_layers(job),
        **_rollouts(job, topology),
        **_algorithm(job),
        **_optimizer(job),
        **_parallelism(job, topology),
        **_engines(job, topology),
        **_drafts(job),
        **_weight_sync(job),
    }
    whole, faults = flags.merge(arguments, map(str, job.launch.extra_flags))
    own = whole.keys() - arguments.keys()
    faults += [f"{name} {IMPOSSIBLE[name]}" for name in own & IMPOSSIBLE.keys()]
    if faults:
        raise ConfigError([f"launch.extra_flags: {fault}" for fault in faults])
    return whole


def build_conversion_arguments(job: ClusterJob) -> Arguments:
    """Return the arguments of slime's ``tools/convert_hf_to_torch_dist.py``, without ``--save``."""
    return {
        **megatron_arguments(job.architecture),
        **_drafting_layers(job),
        "--hf-checkpoint": (str(job.model.path),),
    }


def _drafting_layers(job: ClusterJob) -> Arguments:
    if not job.model.speculative.train_weight:
        return {}
    return {"--mtp-num-layers": (str(job.architecture.draft_layers),)}


def _places(job: ClusterJob, topology: Topology) -> Arguments:
    places: Arguments = {
        "--actor-num-nodes": (str(topology.train_gpus // topology.gpus_per_node),),
        "--actor-num-gpus-per-node": (str(topology.gpus_per_node),),
        "--num-gpus-per-node": (str(topology.gpus_per_node),),
        "--rollout-num-gpus": (str(topology.rollout_gpus),),
    }
    return places | ({"--colocate": ()} if topology.colocated else {})


def _checkpoints(job: ClusterJob) -> Arguments:
    saved = str(job_dir(job) / "checkpoints")
    return {
        "--hf-checkpoint": (str(job.model.fp8_path or job.model.path),),
        "--ref-load": (str(converted_checkpoint(job)),),
        "--load": (saved,),  # While it is empty, slime starts from --ref-load.
        "--save": (saved,),
        "--save-interval": (str(job.trainer.save_every),),
    }


def _rollouts(job: ClusterJob, topology: Topology) -> Arguments:
    config, trainer = job.config, job.trainer
    arguments: Arguments = {
        "--rollout-function-path": (GENERATE,),
        "--data-source-path": (DATA_SOURCE,),
        "--custom-reward-post-process-path": (REWARDS,),
        "--custom-megatron-init-path": (INSTALL,),
        "--num-rollout": (str(config.run.steps),),
        "--rollout-batch-size": (str(config.run.tasks_per_step),),
        "--n-samples-per-prompt": (str(config.run.rollouts_per_task),),
        "--num-steps-per-rollout": (str(trainer.minibatches),),
        "--global-batch-size": (str(topology.batch),),
        "--micro-batch-size": ("1",),
        "--rollout-max-context-len": (str(job.model.max_context_tokens),),
        "--rollout-max-response-len": (str(config.sampling.max_new_tokens),),
        "--rollout-temperature": (f"{config.sampling.temperature:g}",),
        "--rollout-top-p": (f"{config.sampling.top_p:g}",),
        "--rollout-top-k": (str(config.sampling.top_k),),
        "--rollout-seed": (str(config.seed),),
        "--seed": (str(config.seed + 1),),  # Megatron refuses 0.
        "--use-fault-tolerance": (),
    }
    if job.model.stop_token_ids:
        arguments["--rollout-stop-token-ids"] = tuple(map(str, job.model.stop_token_ids))
    if config.run.eval_tasks and config.run.steps:
        # slime requires a data set with name and file; our evaluation function ignores the file.
        arguments |= {
            "--eval-function-path": (EVALUATE,),
            "--eval-interval": (str(config.run.eval_every or config.run.steps),),
            "--eval-prompt-data": ("held_out", str(job_dir(job) / "config.json")),
            "--n-samples-per-eval-prompt": (str(config.run.eval_attempts),),
        }
    if config.run.overlap != "none":
        arguments["--update-weights-interval"] = ("1",)
    if config.observe.tensorboard:
        names = ("--tb-project-name", "--tb-experiment-name")
        arguments |= {"--use-tensorboard": (), **dict.fromkeys(names, (job.launch.name,))}
    match config.routing_replay.kind:
        case "rollout":
            arguments["--use-rollout-routing-replay"] = ()
        case "recompute":
            arguments["--use-routing-replay"] = ()
    return arguments


_RATIOS = {"ppo": "grpo", "gspo": "gspo", "cispo": "cispo", "reinforce": "cispo"}
"""slime's name of the ratio in a loss. REINFORCE is CISPO whose ratio is held at 1."""


def _algorithm(job: ClusterJob) -> Arguments:
    """Return the arguments of loss, mean, corrections and penalties; ``conf.rules.slime`` refuses
    what slime lacks. Advantages come from ``REWARDS``.
    """
    trainer = job.trainer
    assert isinstance(trainer.loss, str)  # by conf.rules.slime
    # slime's CISPO has a lower bound as well; at 1 - 1 = 0 it bounds nothing.
    clips = {
        "cispo": ("1", f"{trainer.clip_high:g}"),
        "reinforce": ("0", "0"),
    }.get(trainer.loss, (f"{trainer.clip_low:g}", f"{trainer.clip_high:g}"))
    arguments: Arguments = {
        "--advantage-estimator": (_RATIOS[trainer.loss],),
        "--eps-clip": clips[:1],
        "--eps-clip-high": clips[1:],
        "--kl-coef": ("0",),  # slime applies it to estimators that it does not use here
        "--kl-loss-coef": (f"{trainer.kl.weight:g}",),
        "--entropy-coef": (f"{trainer.entropy_bonus:g}",),
    }
    if trainer.clip_dual is not None:
        arguments["--eps-clip-c"] = (f"{trainer.clip_dual:g}",)
    if trainer.kl.weight:
        arguments |= {"--use-kl-loss": (), "--kl-loss-type": (trainer.kl.estimator,)}
    if trainer.mean_of_losses == "token":
        arguments["--calculate-per-token-loss"] = ()
    if trainer.correction.truncate == "token":
        bounds = trainer.correction
        arguments |= {
            "--use-tis": (),
            "--tis-clip": (f"{bounds.cap:g}",),
            "--tis-clip-low": (f"{bounds.floor:g}",),
            "--custom-tis-function-path": (TRUNCATE,),
        }
    else:  # without a correction the ratio is that to the engine's logprobs
        arguments |= {
            "--use-rollout-logprobs": (),
            "--loss-type": ("custom_loss",),
            "--custom-loss-function-path": (LOSS,),
            "--custom-megatron-before-train-step-hook-path": (BEGIN_UPDATE,),
        }
    return arguments


def _optimizer(job: ClusterJob) -> Arguments:
    trainer = job.trainer
    arguments: Arguments = {
        "--optimizer": ("adam",),
        "--lr": (f"{trainer.learning_rate:g}",),
        **_schedule(trainer),
        "--weight-decay": (f"{trainer.weight_decay:g}",),
        "--adam-beta1": (f"{trainer.betas[0]:g}",),
        "--adam-beta2": (f"{trainer.betas[1]:g}",),
        "--clip-grad": (f"{trainer.grad_clip:g}",),
    }
    if trainer.optimizer_offload:
        offload = ("optimizer-cpu-offload", "overlap-cpu-optimizer-d2h-h2d")
        arguments |= {f"--{name}": () for name in (*offload, "use-precision-aware-optimizer")}
    return arguments


def _schedule(trainer: SlimeTrainerConfig) -> Arguments:
    """Return Megatron's arguments of ``find_learning_rate``'s course.

    Megatron counts updates, ``minibatches`` in a step, and begins with update 0 at
    ``--lr-warmup-init``: so that step 1 has its part of the warm-up, it rises from there in
    ``warmup_steps`` − 1 steps. A job that goes on with more steps keeps the course of its
    configuration, which Megatron would refuse to change without the last flag.
    """
    steps, updates = trainer.warmup_steps, trainer.minibatches
    rising = max(0, steps - 1)
    arguments: Arguments = {
        "--lr-decay-style": (trainer.decay,),
        "--lr-warmup-iters": (str(rising * updates),),
        "--lr-decay-iters": (str(max(1, steps, trainer.decay_steps) * updates),),
        "--min-lr": (f"{trainer.min_learning_rate:g}",),
        "--override-opt-param-scheduler": (),
    }
    if rising:
        arguments["--lr-warmup-init"] = (f"{trainer.learning_rate / steps:g}",)
    return arguments


def _parallelism(job: ClusterJob, topology: Topology) -> Arguments:
    layout, trainer = job.model.layout, job.trainer
    arguments: Arguments = {
        "--tensor-model-parallel-size": (str(topology.tensor),),
        "--pipeline-model-parallel-size": (str(topology.pipeline),),
        "--context-parallel-size": (str(topology.context),),
        "--expert-model-parallel-size": (str(topology.expert),),
        "--expert-tensor-parallel-size": (str(topology.expert_tensor),),
        "--recompute-granularity": (trainer.recompute,),
        "--use-dynamic-batch-size": (),
        "--max-tokens-per-gpu": (str(layout.tokens_per_gpu),),
        "--log-probs-chunk-size": (str(trainer.logits_chunk),),
        "--balance-data": (),
        "--attention-dropout": ("0",),
        "--hidden-dropout": ("0",),
        "--accumulate-allreduce-grads-in-fp32": (),
        "--attention-softmax-in-fp32": (),
        "--attention-backend": ("flash",),
    }
    if job.architecture.experts is not None:
        arguments["--moe-token-dispatcher-type"] = ("alltoall",)
    if trainer.recompute == "full":
        arguments |= {"--recompute-method": ("uniform",), "--recompute-num-layers": ("1",)}
    if topology.tensor > 1:
        arguments["--sequence-parallel"] = ()
    if layout.last_stage_layers is not None:
        arguments["--decoder-last-pipeline-num-layers"] = (str(layout.last_stage_layers),)
    if layout.dispatcher == "deepep":
        arguments |= {"--moe-token-dispatcher-type": ("flex",), "--moe-enable-deepep": ()}
    return arguments


def _engines(job: ClusterJob, topology: Topology) -> Arguments:
    parsers = job.model.parsers
    arguments: Arguments = {
        "--rollout-num-gpus-per-engine": (str(topology.engine_gpus),),
        "--sglang-mem-fraction-static": (f"{job.model.layout.engine_memory:g}",),
        "--sglang-ep-size": (str(topology.engine_expert),),
    }
    if parsers.tool is not None:
        arguments["--sglang-tool-call-parser"] = (parsers.tool,)
    if parsers.reasoning is not None:
        arguments["--sglang-reasoning-parser"] = (parsers.reasoning,)
    if topology.engine_data > 1:
        arguments |= {
            "--sglang-enable-dp-attention": (),
            "--sglang-dp-size": (str(topology.engine_data),),
            "--sglang-enable-dp-lm-head": (),
            "--sglang-moe-dense-tp-size": ("1",),
        }
    return arguments


def _drafts(job: ClusterJob) -> Arguments:
    drafts = job.model.speculative
    if not drafts.steps:
        return {}
    arguments: Arguments = {
        "--sglang-speculative-algorithm": ("EAGLE3" if drafts.path else "EAGLE",),
        "--sglang-speculative-num-steps": (str(drafts.steps),),
        # One draft at each place: the drafts and the token that is certain are checked at once.
        "--sglang-speculative-eagle-topk": ("1",),
        "--sglang-speculative-num-draft-tokens": (str(drafts.steps + 1),),
    }
    if drafts.path is not None:
        arguments["--sglang-speculative-draft-model-path"] = (str(drafts.path),)
    if drafts.train_weight:
        arguments |= {
            "--enable-mtp-training": (),
            "--mtp-loss-scaling-factor": (f"{drafts.train_weight:g}",),
        }
    return arguments


def _weight_sync(job: ClusterJob) -> Arguments:
    if job.trainer.weight_sync == "full":
        return {}
    return {
        "--update-weight-mode": ("delta",),
        "--update-weight-transport": ("disk",),
        "--update-weight-disk-dir": (str(job_dir(job) / "weight-updates"),),
        "--update-weight-local-checkpoint-dir": (str(job.trainer.weight_sync_dir),),
    }
