#!/usr/bin/env bash
# The RayJob, by KubeRay: created, or found running; followed; its end is ours. A RayJob of this name
# that is over is replaced, which goes on from the last checkpoint.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"
trap '' HUP # the terminal may go
on() { kubectl --namespace "$NAMESPACE" "$@"; }

# rayjob_state: of the deployment and of the job in it, "none" if there is no such RayJob.
rayjob_state() {
  on get rayjob "$NAME" --ignore-not-found --output 'jsonpath={.metadata.name} {.status.jobDeploymentStatus} {.status.jobStatus}'
}
over() { [[ $1 == *" Complete "* || $1 == *" Failed "* || $1 == *" ValidationFailed "* ]]; }

state=$(rayjob_state) || die 4 "kubectl cannot ask for RayJob $NAME in namespace $NAMESPACE"
if [[ -n $state ]] && over "$state "; then
  say "RayJob $NAME is over (${state#* }): replacing it"
  on delete rayjob "$NAME" --wait >&2
  state=
fi
if [[ -n $state ]]; then
  say "RayJob $NAME is running: following it"
else
  on apply --filename "$HERE/rayjob.json" >&2 || die 4 "kubectl has not taken the RayJob"
  say "RayJob $NAME submitted"
fi

# KubeRay's submitter is a Job of the same name; its log is the job's.
before='' lost=0
while :; do
  if state=$(rayjob_state); then
    lost=0
    [[ -n $state ]] || die 4 "RayJob $NAME has been deleted"
    [[ $state == "$before" ]] || say "RayJob $state"
    before=$state
    ! over "$state " || break
    [[ $state != *" Running "* ]] || on logs --follow --tail=20 "job/$NAME" 2>/dev/null || :
  else
    lost=$((lost + 1))
    ((lost < 60)) || die 4 "kubectl does not answer any more"
  fi
  sleep 5
done
case $state in
  *" SUCCEEDED") exit 0 ;;
  *" FAILED" | *" STOPPED") die 1 "the job has failed; start the same script again to go on from the last checkpoint" ;;
  *) die 4 "RayJob $NAME has ended without a job: kubectl --namespace $NAMESPACE describe rayjob $NAME" ;;
esac
