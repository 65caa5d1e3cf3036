#!/usr/bin/env bash
# stop_node.sh NODE: end the node.sh of this job on this machine, and nothing else.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
file=$STATE_DIR/node-$1.pid
[[ -s $file ]] || exit 0
read -r pid start_time <"$file"
# A process with that id but another start time is a later, unrelated one.
if [[ $(cut -d ' ' -f 22 "/proc/$pid/stat" 2>/dev/null) != "$start_time" ]]; then
  rm -f -- "$file"
  exit 0
fi
kill -TERM "$pid"
for _ in {1..60}; do
  [[ -e $file ]] || exit 0
  sleep 1
done
printf 'node %s: process %s did not end\n' "$1" "$pid" >&2
exit 4
