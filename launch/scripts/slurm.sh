#!/usr/bin/env bash
# slurm.sh: submit the job to Slurm unless it runs already. The secrets travel in the environment
# (--export=ALL).
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"

known=$STATE_DIR/slurm_id
if [[ -s $known ]]; then
  id=$(<"$known")
  # squeue fails with "Invalid job id" for a job that has ended. Any other failure says nothing about
  # the job, and submitting it then could run it twice.
  listed=$(squeue --noheader --jobs "$id" 2>&1) || [[ $listed == *"Invalid job id"* ]] ||
    die 4 "squeue: $listed"
  if [[ -n $listed && $listed != *"Invalid job id"* ]]; then
    say "Slurm job $id runs or waits already; its log: $LOG_DIR/slurm-$id.log"
    exit 0
  fi
fi
require_secrets
prepare_job_dir
rm -f -- "$known" # Otherwise a follower would read the log of the job before.
phase queued
id=$(AGENTRL_SCRIPTS=$SCRIPT_DIR sbatch --parsable --export=ALL "${SBATCH_ARGS[@]}" --output "$LOG_DIR/slurm-%j.log" "$SCRIPT_DIR/slurm_job.sh") ||
  die 4 "sbatch did not accept the job"
printf '%s\n' "${id%%;*}" >"$known" # With several clusters, --parsable prints ID;CLUSTER.
say "Slurm job ${id%%;*} submitted; its log: $LOG_DIR/slurm-${id%%;*}.log"
