#!/usr/bin/env bash
# Submit the job to Slurm; the secrets go with the environment (--export=ALL).
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"

require_secrets
prepare_job_dir
known=$STATE_DIR/slurm_id
if [[ -s $known && -n $(squeue --noheader --jobs "$(<"$known")" 2>/dev/null) ]]; then
  say "Slurm job $(<"$known") is not over yet; its log: $LOG_DIR/slurm-$(<"$known").log"
  exit 0
fi
id=$(AGENTRL_SCRIPTS=$SCRIPT_DIR sbatch --parsable --export=ALL "${SBATCH_ARGS[@]}" --output "$LOG_DIR/slurm-%j.log" "$SCRIPT_DIR/slurm_job.sh")
printf '%s\n' "${id%%;*}" >"$known"
say "Slurm job ${id%%;*} submitted; its log: $LOG_DIR/slurm-${id%%;*}.log"
