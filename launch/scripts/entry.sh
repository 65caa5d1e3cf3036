#!/usr/bin/env bash
# entry.sh: the Ray job. Its environment is the cluster's with runtime_env.json.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"

require_secrets
mkdir -p "$STATE_DIR" "$LOG_DIR" "$JOB_DIR/checkpoints"
if [[ $LAUNCHER == kubernetes ]]; then # others have done all of it
  rm -f -- "$STATE_DIR"/failed-*
  keep_config
  wait_for_nodes auto
fi
phase preparing
if [[ $LAUNCHER == kubernetes || $LAUNCHER == ray ]]; then # elsewhere node.sh does
  "$PYTHON" -u "$HERE/check_nodes.py" "$STATE_DIR" "$NODES" -- bash "$HERE/preflight.sh" member
fi
"$PYTHON" -u -m runners.slime.job begin "$JOB_DIR" || {
  code=$?
  printf '%s\n' "$code" >"$STATE_DIR/job_code" # Ray says no more than that it failed
  exit "$code"
}
if ! said=$("$PYTHON" -u -m runners.slime.job check "$JOB_DIR" 2>&1); then
  printf '%s\n' "$said" | tail -n 3 >"$STATE_DIR/failed-$HOSTNAME"
  die 3 "$said"
fi
[[ -z $said ]] || say "$said"
if [[ ! -e $TORCH_DIST/latest_checkpointed_iteration.txt ]]; then
  phase converting
  say "converting $HF_CHECKPOINT into $TORCH_DIST"
  "$PYTHON" -u "$HERE/convert.py" "$TORCH_DIST" "$CONVERT_NODES" "$GPUS_PER_NODE" -- \
    "$SLIME_DIR/tools/convert_hf_to_torch_dist.py" "${CONVERT_ARGS[@]}"
fi
phase training
cd "$SLIME_DIR"
code=0
"$PYTHON" -u train.py "${TRAIN_ARGS[@]}" || code=$?
"$PYTHON" -u -m runners.slime.job end "$JOB_DIR" "$code" || say "the run's store has not been closed"
exit "$code"
