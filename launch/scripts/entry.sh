#!/usr/bin/env bash
# entry.sh: the Ray job. Its environment is the cluster's with runtime_env.json.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"

require_secrets
mkdir -p "$JOB_DIR/checkpoints"
[[ -e $JOB_DIR/config.json ]] || cp -- "$HERE/config.json" "$JOB_DIR/config.json"
[[ $LAUNCHER != kubernetes ]] || wait_for_nodes auto # others have waited
if [[ ! -e $TORCH_DIST/latest_checkpointed_iteration.txt ]]; then
  say "converting $HF_CHECKPOINT into $TORCH_DIST"
  "$PYTHON" -u "$HERE/convert.py" "$TORCH_DIST" "$CONVERT_NODES" "$GPUS_PER_NODE" -- \
    "$SLIME_DIR/tools/convert_hf_to_torch_dist.py" "${CONVERT_ARGS[@]}"
fi
cd "$SLIME_DIR"
exec "$PYTHON" -u train.py "${TRAIN_ARGS[@]}"
