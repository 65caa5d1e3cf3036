#!/usr/bin/env bash
# slurm_node.sh HEAD: run node.sh on the node of this Slurm task; the first task is Ray's head.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
role=worker
[[ $SLURM_PROCID != 0 ]] || role="head"
exec bash "$HERE/node.sh" "$role" "$1" "${SLURMD_NODENAME:-$HOSTNAME}"
