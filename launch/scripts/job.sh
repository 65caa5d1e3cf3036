#!/usr/bin/env bash
# job.sh HEAD: wait for the nodes, submit the job or find it running, follow it, keep its exit code.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"
address=http://$1:$DASHBOARD_PORT
known=$STATE_DIR/submission
log=$LOG_DIR/job.log

# job_state ID: running, succeeded, failed, stopped or unknown.
job_state() {
  local said
  said=$(ray job status --address "$address" "$1" 2>&1) || { [[ $said == *"$1"* ]] || said=; }
  case $said in
    *"Job '$1' succeeded"*) echo succeeded ;;
    *"Job '$1' failed"*) echo failed ;;
    *"Job '$1' was stopped"*) echo stopped ;;
    *"Status for job '$1'"*) echo running ;;
    *) echo unknown ;;
  esac
}

wait_for_nodes "$address"
id=
[[ ! -s $known ]] || id=$(<"$known")
if [[ -n $id && $(job_state "$id") == running ]]; then
  say "job $id is running: following it"
else
  id=$NAME-$(date -u +%Y%m%d-%H%M%S)
  printf '%s\n' "$id" >"$known"
  rm -f -- "$STATE_DIR/exit_code"
  ray job submit --no-wait --address "$address" --submission-id "$id" \
    --runtime-env-json "$(<"$HERE/runtime_env.json")" -- bash "$SCRIPT_DIR/entry.sh" 2>&1 | tee -a "$log"
  say "job $id submitted; its log: $log"
fi

state=running unknown=0
until [[ $state == succeeded || $state == failed || $state == stopped ]]; do
  ray job logs --address "$address" --follow "$id" 2>&1 | tee -a "$log" || :
  state=$(job_state "$id")
  case $state in
    running) unknown=0 ;;
    unknown) unknown=$((unknown + 1)) ;;
    *) break ;;
  esac
  ((unknown < 10)) || die 4 "Ray at $address does not know job $id any more"
  sleep 5
done
code=1
[[ $state != succeeded ]] || code=0
printf '%s\n' "$code" >"$STATE_DIR/exit_code"
say "job $id $state; start the same script again to go on from the last checkpoint"
exit "$code"
