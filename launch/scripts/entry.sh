#!/usr/bin/env bash
# entry.sh: the Ray job: pre-flight, tasks, conversion of the checkpoint, training. It runs in the
# cluster's environment plus runtime_env.json.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"

require_secrets
mkdir -p "$STATE_DIR" "$LOG_DIR" "$JOB_DIR/checkpoints"
if [[ $LAUNCHER == kubernetes ]]; then # The other launchers' start scripts have done this already.
  rm -f -- "$STATE_DIR"/failed-*
  keep_config
  mkdir -p "$SCRIPT_DIR"
  cp -- "$HERE"/{settings,steps,export}.sh "$SCRIPT_DIR"/ # for an export when these pods are gone
  wait_for_nodes auto
fi
phase preparing
if [[ $LAUNCHER == kubernetes || $LAUNCHER == ray ]]; then # Elsewhere node.sh runs the pre-flight.
  "$PYTHON" -u "$HERE/check_nodes.py" "$STATE_DIR" "$NODES" -- bash "$HERE/preflight.sh" member
fi
"$PYTHON" -u -m runners.campaigns.slime.job begin "$JOB_DIR" || {
  code=$?
  printf '%s\n' "$code" >"$STATE_DIR/job_code" # Ray reports that a job failed, not its exit code.
  exit "$code"
}
if ! output=$("$PYTHON" -u -m runners.campaigns.slime.job check "$JOB_DIR" 2>&1); then
  printf '%s\n' "$output" | tail -n 3 >"$STATE_DIR/failed-$HOSTNAME"
  die 3 "$output"
fi
[[ -z $output ]] || say "$output"
if [[ ! -e $TORCH_DIST/latest_checkpointed_iteration.txt ]]; then
  phase converting
  say "converting $HF_CHECKPOINT into $TORCH_DIST"
  "$PYTHON" -u "$HERE/convert.py" "$TORCH_DIST" "$CONVERT_NODES" "$GPUS_PER_NODE" -- \
    "$SLIME_DIR/tools/convert_hf_to_torch_dist.py" "${CONVERT_ARGS[@]}"
fi
phase training
cd "$SLIME_DIR"
code=0
"$PYTHON" -u "$TRAIN_SCRIPT" "${TRAIN_ARGS[@]}" || code=$?
"$PYTHON" -u -m runners.campaigns.slime.job end "$JOB_DIR" "$code" || say "warning: the run's store could not be closed"
if ((code == 0 && EXPORT_WEIGHTS)); then
  bash "$HERE/export.sh" || say "warning: the weights could not be exported; try again on a node: bash $SCRIPT_DIR/export.sh"
fi
exit "$code"
