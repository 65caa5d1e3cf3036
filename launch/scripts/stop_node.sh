#!/usr/bin/env bash
# stop_node.sh NODE: end what node.sh started here, and nothing else.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
file=$STATE_DIR/node-$1.pid
[[ -s $file ]] || exit 0
read -r pid born <"$file"
# A process of that number that was born at another time is somebody else's.
if [[ $(cut -d ' ' -f 22 "/proc/$pid/stat" 2>/dev/null) != "$born" ]]; then
  rm -f -- "$file"
  exit 0
fi
kill -TERM "$pid"
for _ in {1..60}; do
  [[ -e $file ]] || exit 0
  sleep 1
done
printf 'node %s: process %s has not ended\n' "$1" "$pid" >&2
exit 4
