#!/usr/bin/env bash
# ssh.sh: run the job on the hosts of launch.hosts_file, started on the first of them. It ends every
# process that it has started, and no other.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/settings.sh"
source "$HERE/steps.sh"
trap '' HUP # survive the terminal

follow_launcher
require_secrets
[[ -r $HOSTS_FILE ]] || die 2 "launch.hosts_file=$HOSTS_FILE cannot be read"
mapfile -t hosts < <(grep -Ev '^[[:space:]]*(#|$)' "$HOSTS_FILE" | tr -d ' \t\r')
((${#hosts[@]} == NODES)) || die 2 "launch.hosts_file=$HOSTS_FILE names ${#hosts[@]} hosts, launch.nodes=$NODES"
head=${hosts[0]}
# An earlier launch that was killed has left a submission without an exit code.
earlier_job=
if [[ -s $STATE_DIR/submission && ! -e $STATE_DIR/exit_code ]]; then
  earlier_job=$(job_state "http://$head:$DASHBOARD_PORT" "$(<"$STATE_DIR/submission")")
fi
prepare_job_dir
begin_launch

# run_on HOST: run the commands on standard input there.
run_on() { ssh -T -o BatchMode=yes -o ConnectTimeout=30 "${SSH_OPTIONS[@]}" "$1" bash -s; }

# start_worker HOST. Secrets travel on ssh's standard input: arguments are visible to all users of a
# machine, and files would stay.
start_worker() {
  {
    local name
    for name in "${SECRETS[@]}"; do
      printf 'export %s=%q\n' "$name" "${!name}"
    done
    printf 'exec bash %q worker %q %q </dev/null\n' "$SCRIPT_DIR/node.sh" "$head" "$1"
  } | run_on "$1"
}

# stop_nodes: end the processes that node.sh has started, on every host.
stop_nodes() {
  local host stops=()
  : >"$STATE_DIR/stopping"
  for host in "${hosts[@]:1}"; do
    printf 'exec bash %q %q </dev/null\n' "$SCRIPT_DIR/stop_node.sh" "$host" | run_on "$host" >>"$LOG_DIR/node-$host.log" 2>&1 &
    stops+=("$!")
  done
  bash "$SCRIPT_DIR/stop_node.sh" "$head" || :
  wait "${stops[@]}" || :
}

stop() {
  local code=$?
  [[ -z $job ]] || kill -TERM "$job" 2>/dev/null || :
  stop_nodes
  wait "${nodes[@]}" || :
  end_launch "$code"
}
nodes=() job='' how=()
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ $earlier_job == running ]]; then
  say "an earlier launch was lost while its job runs: following the job"
  how=(follow)
else
  if compgen -G "$STATE_DIR/node-*.pid" >/dev/null; then
    say "an earlier launch was lost and has left nodes running: ending them"
    stop_nodes
    rm -f -- "$STATE_DIR/stopping"
  fi
  phase starting
  bash "$SCRIPT_DIR/node.sh" head "$head" "$head" >>"$LOG_DIR/node-$head.log" 2>&1 &
  nodes+=("$!")
  for host in "${hosts[@]:1}"; do
    start_worker "$host" >>"$LOG_DIR/node-$host.log" 2>&1 &
    nodes+=("$!")
  done
fi
bash "$SCRIPT_DIR/job.sh" "$head" "${how[@]}" &
job=$!
wait "$job"
