#!/usr/bin/env bash
# preflight.sh ROLE: check this node; print every fault and exit with 3 if there is one. ROLE: head or
# worker of a Ray cluster that is about to start, or member of one that runs already.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
faults=()

for program in ray nvidia-smi "$PYTHON"; do
  command -v "$program" >/dev/null || faults+=("$program is missing")
done
if command -v nvidia-smi >/dev/null; then
  gpus=$(nvidia-smi --list-gpus | wc -l)
  ((gpus == GPUS_PER_NODE)) || faults+=("$gpus GPUs, launch.gpus_per_node=$GPUS_PER_NODE")
  ((gpus < 2)) || grep -Eq '\bNV[0-9]+\b' <<<"$(nvidia-smi topo -m)" ||
    printf 'warning: no NVLink between the GPUs: tensor and expert parallelism will be slow\n' >&2
fi
free_gb=$(df --output=avail --block-size=1G "${TMPDIR:-/tmp}" | tail -n 1 | tr -d ' ')
((free_gb >= FREE_DISK_GB)) || faults+=("$free_gb GB free in ${TMPDIR:-/tmp}, launch.free_disk_gb=$FREE_DISK_GB")
# Only writing a file shows that it works: permission bits do not show a read-only or lost mount.
probe=$STATE_DIR/.probe-$HOSTNAME-$$
if ! (: >"$probe") 2>/dev/null; then
  faults+=("$STATE_DIR cannot be written: is launch.shared_dir mounted here?")
fi
rm -f -- "$probe"
[[ -r $HF_CHECKPOINT/config.json ]] || faults+=("model.path=$HF_CHECKPOINT has no config.json")
[[ -r $SLIME_DIR/$TRAIN_SCRIPT ]] || faults+=("launch.slime_dir=$SLIME_DIR has no $TRAIN_SCRIPT")
if [[ $1 == head ]]; then
  for port in "$RAY_PORT" "$DASHBOARD_PORT"; do
    if (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      faults+=("port $port is in use: end what listens there, or change launch.ray_port or launch.dashboard_port")
    fi
  done
fi
((${#faults[@]} == 0)) || {
  printf '%s; ' "${faults[@]}"
  exit 3
}
