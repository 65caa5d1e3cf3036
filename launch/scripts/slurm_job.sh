#!/usr/bin/env bash
# slurm_job.sh: the Slurm job: node.sh on every node, and job.sh on the first one.
set -euo pipefail
HERE=${AGENTRL_SCRIPTS:?} # Slurm runs a copy of this script in another directory.
source "$HERE/settings.sh"
source "$HERE/steps.sh"
phase joining 0 "$NODES"
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun --nodes "$NODES" --ntasks "$NODES" --ntasks-per-node 1 --output "$LOG_DIR/node-%N.log" \
  bash "$SCRIPT_DIR/slurm_node.sh" "$head" &
nodes=$!
end() {
  local code=$?
  kill -TERM "$nodes" 2>/dev/null || :
  wait "$nodes" || :
  end_launch "$code"
}
trap end EXIT
trap 'exit 143' TERM
bash "$SCRIPT_DIR/job.sh" "$head" &
wait "$!"
