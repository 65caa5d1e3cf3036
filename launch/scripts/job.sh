#!/usr/bin/env bash
# job.sh HEAD [follow]: wait for the nodes, submit the job or find it running, follow it, end as it
# ends. With "follow" the job was running a moment ago.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"
address=http://$1:$DASHBOARD_PORT
known=$STATE_DIR/submission
log=$LOG_DIR/job.log

id=
[[ ! -s $known ]] || id=$(<"$known")
if [[ -n $id && (${2:-} == follow || $(job_state "$address" "$id") == running) ]]; then
  say "job $id is running: following it"
else
  wait_for_nodes "$address"
  id=$NAME-$(date -u +%Y%m%d-%H%M%S)
  printf '%s\n' "$id" >"$known"
  phase submitted
  ray job submit --no-wait --address "$address" --submission-id "$id" \
    --runtime-env-json "$(<"$HERE/runtime_env.json")" -- bash "$SCRIPT_DIR/entry.sh" 2>&1 | tee -a "$log"
  say "job $id submitted; its log: $log"
fi

state=running unknown=0
until [[ $state == succeeded || $state == failed || $state == stopped ]]; do
  ray job logs --address "$address" --follow "$id" 2>&1 | tee -a "$log" || :
  state=$(job_state "$address" "$id")
  case $state in
    running) unknown=0 ;;
    unknown) unknown=$((unknown + 1)) ;;
    *) break ;;
  esac
  ((unknown < 10)) || die 4 "Ray at $address does not know job $id any more"
  sleep 5
done
[[ $state == succeeded ]] || refuse_failed_nodes # entry.sh has left why it did not begin
[[ $state == succeeded ]] ||
  die "$(cat -- "$STATE_DIR/job_code" 2>/dev/null || echo 1)" "job $id ${state/failed/has failed}; started again, it goes on from the last checkpoint"
say "job $id has succeeded"
