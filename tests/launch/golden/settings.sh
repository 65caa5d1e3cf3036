# shellcheck shell=bash disable=SC2034
# The values of this job, which the scripts read.
# Written by: agentrl launch trainer=slime --out 'a job'
LAUNCHER=slurm
NAME=agentrl
NODES=8
GPUS_PER_NODE=8
JOB_DIR=/shared/agentrl
SCRIPT_DIR=/shared/agentrl/launch
STATE_DIR=/shared/agentrl/state
LOG_DIR=/shared/agentrl/logs
SLIME_DIR=/root/slime
TRAIN_SCRIPT=train.py
HF_CHECKPOINT=/shared/weights
TORCH_DIST=/shared/weights_torch_dist
CONVERT_NODES=2
VOCABULARY=151552
EXPORT_WEIGHTS=1
PYTHON=python3
RAY_PORT=6379
DASHBOARD_PORT=8265
JOIN_S=600
FREE_DISK_GB=100
SECRETS=(WANDB_API_KEY)
ENVIRONMENT=(AGENTRL_RUN_DIR=/shared/agentrl PYTHONPATH=/root/Megatron-LM:/root/slime PYTHONUNBUFFERED=1 TENSORBOARD_DIR=/shared/agentrl/tensorboard CUDA_DEVICE_MAX_CONNECTIONS=1 NVSHMEM_DISABLE_NCCL=1)
SBATCH_ARGS=(--exclusive --job-name=agentrl --nodes=8 --ntasks-per-node=1 --gpus-per-node=8 --time=1-00:00:00)
MODULES=()
SRUN_CONTAINER=()
IN_CONTAINER=()
CONVERT_ARGS=(--num-layers 92 --hidden-size 5120 --ffn-hidden-size 12288 --vocab-size 151552 --disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-05 --swiglu --position-embedding-type rope --rotary-base 1000000 --num-attention-heads 96 --group-query-attention --num-query-groups 8 --kv-channels 128 --rotary-percent 0.5 --qk-layernorm --add-qkv-bias --untie-embeddings-and-output-weights --num-experts 160 --moe-router-topk 8 --moe-ffn-hidden-size 1536 --moe-layer-freq '[0]*3+[1]*89' --moe-router-score-function sigmoid --moe-router-dtype fp32 --moe-grouped-gemm --moe-permute-fusion --moe-token-drop-policy probs --moe-aux-loss-coeff 0 --moe-shared-expert-intermediate-size 1536 --moe-router-pre-softmax --moe-router-enable-expert-bias --moe-router-bias-update-rate 0 --moe-router-load-balancing-type seq_aux_loss --moe-router-topk-scaling-factor 2.5 --hf-checkpoint /shared/weights)
TRAIN_ARGS=(--actor-num-nodes 8 --actor-num-gpus-per-node 8 --num-gpus-per-node 8 --rollout-num-gpus 64 --colocate --hf-checkpoint /shared/weights --ref-load /shared/weights_torch_dist --load /shared/agentrl/checkpoints --save /shared/agentrl/checkpoints --save-interval 10 --num-layers 92 --hidden-size 5120 --ffn-hidden-size 12288 --vocab-size 151552 --disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-05 --swiglu --position-embedding-type rope --rotary-base 1000000 --num-attention-heads 96 --group-query-attention --num-query-groups 8 --kv-channels 128 --rotary-percent 0.5 --qk-layernorm --add-qkv-bias --untie-embeddings-and-output-weights --num-experts 160 --moe-router-topk 8 --moe-ffn-hidden-size 1536 --moe-layer-freq '[0]*3+[1]*89' --moe-router-score-function sigmoid --moe-router-dtype fp32 --moe-grouped-gemm --moe-permute-fusion --moe-token-drop-policy probs --moe-aux-loss-coeff 0 --moe-shared-expert-intermediate-size 1536 --moe-router-pre-softmax --moe-router-enable-expert-bias --moe-router-bias-update-rate 0 --moe-router-load-balancing-type seq_aux_loss --moe-router-topk-scaling-factor 2.5 --rollout-function-path runners.campaigns.slime.entry_points.generate_rollout --data-source-path runners.campaigns.slime.data_source.RunDataSource --custom-reward-post-process-path runners.campaigns.slime.entry_points.post_process_rewards --custom-megatron-init-path runners.campaigns.slime.megatron.hooks.install --num-rollout 100 --rollout-batch-size 8 --n-samples-per-prompt 8 --num-steps-per-rollout 1 --global-batch-size 64 --micro-batch-size 1 --rollout-max-context-len 32768 --rollout-max-response-len 16384 --rollout-temperature 1 --rollout-top-p 1 --rollout-top-k -1 --rollout-seed 0 --seed 1 --use-fault-tolerance --rollout-stop-token-ids 151329 151336 151338 --use-tensorboard --tb-project-name agentrl --tb-experiment-name agentrl --advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28 --kl-coef 0 --kl-loss-coef 0 --entropy-coef 0 --use-tis --tis-clip 2 --tis-clip-low 0 --custom-tis-function-path runners.campaigns.slime.megatron.hooks.truncate_ratios --optimizer adam --lr 1e-06 --lr-decay-style constant --lr-warmup-iters 0 --lr-decay-iters 100 --min-lr 0 --override-opt-param-scheduler --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98 --clip-grad 1 --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --context-parallel-size 2 --expert-model-parallel-size 16 --expert-tensor-parallel-size 1 --recompute-granularity full --use-dynamic-batch-size --max-tokens-per-gpu 16384 --log-probs-chunk-size 1024 --balance-data --attention-dropout 0 --hidden-dropout 0 --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32 --attention-backend flash --moe-token-dispatcher-type flex --recompute-method uniform --recompute-num-layers 1 --sequence-parallel --moe-enable-deepep --rollout-num-gpus-per-engine 32 --sglang-mem-fraction-static 0.7 --sglang-ep-size 32 --sglang-tool-call-parser glm47 --sglang-reasoning-parser glm45 --sglang-enable-dp-attention --sglang-dp-size 4 --sglang-enable-dp-lm-head --sglang-moe-dense-tp-size 1)
