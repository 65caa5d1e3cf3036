#!/usr/bin/env bash
# The job on a Ray cluster that is running; nothing of it is started or stopped.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"
trap '' HUP # the terminal may go

follow_launcher
prepare_job_dir
begin_launch
bash "$SCRIPT_DIR/job.sh" "$RAY_HEAD" &
job=$!
# Ended by a signal, it leaves the job running, which has no exit code yet.
trap 'kill -TERM "$job" 2>/dev/null; rm -f -- "$STATE_DIR/launcher"; exit 143' INT TERM
code=0
wait "$job" || code=$?
end_launch "$code"
exit "$code"
