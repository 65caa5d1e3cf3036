#!/usr/bin/env bash
# slurm_job.sh: the Slurm job: node.sh on every node, and job.sh on the first one; both in the container,
# if there is one.
set -euo pipefail
HERE=${AGENTRL_SCRIPTS:?} # Slurm runs a copy of this script in another directory.
source "$HERE/settings.sh"
source "$HERE/steps.sh"

nodes=() job=()
end() {
  local code=$?
  kill -TERM "${job[@]}" "${nodes[@]}" 2>/dev/null || :
  wait "${nodes[@]}" || :
  end_launch "$code"
}
trap end EXIT
trap 'exit 143' TERM
phase joining 0 "$NODES"
load_modules
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Since Slurm 22.05 srun does not take --cpus-per-task from the job.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun --nodes "$NODES" --ntasks "$NODES" --ntasks-per-node 1 --output "$LOG_DIR/node-%N.log" "${SRUN_CONTAINER[@]}" \
  "${IN_CONTAINER[@]}" bash "$SCRIPT_DIR/slurm_node.sh" "$head" &
nodes=("$!")
# This script runs on the host, which may have no Ray, and Pyxis makes containers for steps only. The
# step shares the CPUs, GPUs and memory of the nodes' step (--overlap).
step=()
if ((${#SRUN_CONTAINER[@]})); then
  step=(srun --overlap --nodes 1 --ntasks 1 --ntasks-per-node 1 --nodelist "$head" "${SRUN_CONTAINER[@]}")
fi
"${step[@]}" "${IN_CONTAINER[@]}" bash "$SCRIPT_DIR/job.sh" "$head" &
job=("$!")
wait "${job[@]}"
