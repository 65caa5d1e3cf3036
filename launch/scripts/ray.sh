#!/usr/bin/env bash
# ray.sh: run the job on a Ray cluster that runs already; no node is started or stopped.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"
trap '' HUP # survive the terminal

follow_launcher
prepare_job_dir
begin_launch
bash "$SCRIPT_DIR/job.sh" "$RAY_HEAD" &
job=$!
# A signal ends this script only: the job goes on, so no exit code is written.
trap 'kill -TERM "$job" 2>/dev/null; rm -f -- "$STATE_DIR/launcher"; exit 143' INT TERM
code=0
wait "$job" || code=$?
end_launch "$code"
exit "$code"
