#!/usr/bin/env bash
# The job on a Ray cluster that is running; nothing of it is started or stopped.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"

prepare_job_dir
exec bash "$SCRIPT_DIR/job.sh" "$RAY_HEAD"
