#!/usr/bin/env bash
# node.sh head|worker HEAD [NAME]: check this node, then run one node of Ray until stop_node.sh ends it.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"
role=$1 head=$2 node=${3:-$HOSTNAME}

if ! reason=$(bash "$HERE/preflight.sh" "$role"); then
  printf '%s\n' "$reason" >"$STATE_DIR/failed-$node"
  die 3 "$node: $reason"
fi
export_environment "$head"
# NVLink SHARP needs NVLink between the GPUs; without it NCCL must be told not to try.
export NCCL_NVLS_ENABLE=0
if grep -Eq '\bNV[0-9]+\b' <<<"$(nvidia-smi topo -m)"; then
  NCCL_NVLS_ENABLE=1
fi
place=(--address "$head:$RAY_PORT")
if [[ $role == head ]]; then
  place=(--head --port "$RAY_PORT" --dashboard-host 0.0.0.0 --dashboard-port "$DASHBOARD_PORT")
fi
pid_file=$STATE_DIR/node-$node.pid ray_pid=
# stop_node.sh ends this process, and this process ends the one Ray that it has started: Ray nodes of
# other users on the same machine are left alone.
end() {
  [[ -z $ray_pid ]] || { kill -TERM "$ray_pid" 2>/dev/null && wait "$ray_pid"; } || :
  rm -f -- "$pid_file"
  exit "$1"
}
trap 'end 0' TERM INT
# Process id and start time (field 22): together they name this process and no later one.
printf '%s %s\n' "$$" "$(cut -d ' ' -f 22 "/proc/$$/stat")" >"$pid_file"
[[ ! -e $STATE_DIR/stopping ]] || end 0 # The launch ended before this node was ready.
ray start "${place[@]}" --num-gpus "$GPUS_PER_NODE" --disable-usage-stats --block &
ray_pid=$!
code=0
wait "$ray_pid" || code=$?
ray_pid=
end "$code"
