#!/usr/bin/env bash
# job.sh HEAD [follow]: wait for the nodes, submit the job unless it runs already, follow its log, and
# exit with its exit code. "follow": the caller has just seen it running, so do not ask again.
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

# "ray job logs --follow" also ends when its connection breaks, so the job's state decides. A state
# that is unknown ten times in a row (50 s) means that the cluster is gone.
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
[[ $state == succeeded ]] || refuse_failed_nodes # files that entry.sh has written before training
[[ $state == succeeded ]] ||
  die "$(cat -- "$STATE_DIR/job_code" 2>/dev/null || echo 1)" "job $id ${state/failed/has failed}; start it again to continue from the last checkpoint"
say "job $id has succeeded"
