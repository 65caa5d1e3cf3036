#!/usr/bin/env bash
# Submit the job to Slurm; the secrets go with the environment (--export=ALL).
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"

known=$STATE_DIR/slurm_id
if [[ -s $known ]]; then
  id=$(<"$known")
  # Of a job that it has forgotten squeue says so; anything else it says is no news of the job.
  listed=$(squeue --noheader --jobs "$id" 2>&1) || [[ $listed == *"Invalid job id"* ]] ||
    die 4 "squeue: $listed"
  if [[ -n $listed && $listed != *"Invalid job id"* ]]; then
    say "Slurm job $id is not over yet; its log: $LOG_DIR/slurm-$id.log"
    exit 0
  fi
fi
require_secrets
prepare_job_dir
rm -f -- "$known" # whoever follows would read the log of the job that is over
phase queued
id=$(AGENTRL_SCRIPTS=$SCRIPT_DIR sbatch --parsable --export=ALL "${SBATCH_ARGS[@]}" --output "$LOG_DIR/slurm-%j.log" "$SCRIPT_DIR/slurm_job.sh") ||
  die 4 "sbatch has not taken the job"
printf '%s\n' "${id%%;*}" >"$known"
say "Slurm job ${id%%;*} submitted; its log: $LOG_DIR/slurm-${id%%;*}.log"
