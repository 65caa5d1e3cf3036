#!/usr/bin/env bash
# kubernetes.sh: create the RayJob unless it runs already, follow it, and exit as it ends. A RayJob of
# this name that has ended is replaced; the new one continues from the last checkpoint.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"
trap '' HUP # survive the terminal
in_namespace() { kubectl --namespace "$NAMESPACE" "$@"; }

# rayjob_state: prints "NAME DEPLOYMENT-STATE JOB-STATE"; nothing if there is no such RayJob.
rayjob_state() {
  in_namespace get rayjob "$NAME" --ignore-not-found --output 'jsonpath={.metadata.name} {.status.jobDeploymentStatus} {.status.jobStatus}'
}
has_ended() { [[ $1 == *" Complete "* || $1 == *" Failed "* || $1 == *" ValidationFailed "* ]]; }

state=$(rayjob_state) || die 4 "kubectl cannot ask for RayJob $NAME in namespace $NAMESPACE"
if [[ -n $state ]] && has_ended "$state "; then
  say "RayJob $NAME has ended (${state#* }): replacing it"
  in_namespace delete rayjob "$NAME" --wait >&2
  state=
fi
if [[ -n $state ]]; then
  say "RayJob $NAME is running: following it"
else
  in_namespace apply --filename "$HERE/rayjob.json" >&2 || die 4 "kubectl did not accept the RayJob"
  say "RayJob $NAME submitted"
fi

# KubeRay submits with a Kubernetes Job of the same name, whose log is that of the Ray job. An API
# server that does not answer for 60 polls (5 minutes) is lost.
before='' lost=0
while :; do
  if state=$(rayjob_state); then
    lost=0
    [[ -n $state ]] || die 4 "RayJob $NAME has been deleted"
    [[ $state == "$before" ]] || say "RayJob $state"
    before=$state
    ! has_ended "$state " || break
    [[ $state != *" Running "* ]] || in_namespace logs --follow --tail=20 "job/$NAME" 2>/dev/null || :
  else
    lost=$((lost + 1))
    ((lost < 60)) || die 4 "kubectl does not answer any more"
  fi
  sleep 5
done
case $state in
  *" SUCCEEDED") exit 0 ;;
  *" FAILED" | *" STOPPED") die 1 "the job has failed; start it again to continue from the last checkpoint" ;;
  *) die 4 "RayJob $NAME has ended without running its job; for the reason: kubectl --namespace $NAMESPACE describe rayjob $NAME" ;;
esac
