# shellcheck shell=bash
# Functions that the scripts share; they source this file after settings.sh.

say() { printf '%s agentrl: %s\n' "$(date -u +%H:%M:%S)" "$*" >&2; }

# die CODE MESSAGE: 2 configuration, 3 pre-flight, 4 a service is gone.
die() {
  say "error: $2"
  exit "$1"
}

# phase WORDS: write the job's phase for those who follow it. The file is replaced as a whole, so that
# nobody reads half of it.
phase() {
  printf '%s\n' "$*" >"$STATE_DIR/phase.new-$$"
  mv -f -- "$STATE_DIR/phase.new-$$" "$STATE_DIR/phase"
}

require_secrets() {
  local name missing=()
  for name in "${SECRETS[@]}"; do
    [[ -n ${!name:-} ]] || missing+=("$name")
  done
  ((${#missing[@]} == 0)) || die 2 "not in the environment: ${missing[*]}: export them before the launch"
}

# load_modules: load launch.modules. Shells of batch jobs often lack the command, whose definition is
# where its installation says, or in /etc/profile.d.
load_modules() {
  local file
  ((${#MODULES[@]})) || return 0
  set +u # The definitions read variables that are not set.
  for file in "$MODULESHOME/init/bash" "$LMOD_PKG/init/bash" /etc/profile.d/{modules,lmod,z00_lmod}.sh; do
    # shellcheck disable=SC1090
    declare -F module >/dev/null || [[ ! -r $file ]] || source "$file"
  done
  declare -F module >/dev/null || die 3 "launch.modules=${MODULES[*]}, and $HOSTNAME has no command module"
  module load "${MODULES[@]}" || die 3 "launch.modules: module load ${MODULES[*]} failed on $HOSTNAME"
  set -u
}

# export_environment HEAD: export the job's variables, without its secrets.
export_environment() {
  local assignment
  for assignment in "${ENVIRONMENT[@]}"; do
    export "${assignment?}"
  done
  export no_proxy="127.0.0.1,localhost,$1" NO_PROXY="127.0.0.1,localhost,$1"
}

# refuse_failed_nodes: exit if a node's pre-flight has failed, which leaves a file with the reason.
refuse_failed_nodes() {
  local file
  for file in "$STATE_DIR"/failed-*; do
    [[ -e $file ]] || continue
    die 3 "${file##*/failed-}: $(<"$file")"
  done
}

# count_nodes: print the number of nodes in the JSON on standard input, which "ray list nodes" prints as
# one line however many nodes there are; 0 for anything else.
count_nodes() {
  local program=$PYTHON
  # With launch=ray this machine may not have the nodes' Python; it has one, in which Ray's command runs.
  command -v "$program" >/dev/null || program=python3
  "$program" -c 'import json, sys; print(len({node["node_id"] for node in json.load(sys.stdin)}))' 2>/dev/null || echo 0
}

# wait_for_nodes ADDRESS: wait until exactly NODES nodes are alive, at most JOIN_S seconds. More than
# NODES means that the cluster has other users, whose GPUs the job must not take.
wait_for_nodes() {
  local listed joined=0 before=
  SECONDS=0
  while :; do
    refuse_failed_nodes
    listed=$(ray list nodes --address "$1" --filter state=ALIVE --format json --limit 10000 2>/dev/null) || listed=
    joined=$(count_nodes <<<"$listed")
    if [[ $joined != "$before" ]]; then
      phase joining "$joined" "$NODES"
      before=$joined
    fi
    ((joined != NODES)) || break
    ((joined < NODES)) || die 4 "$joined nodes joined, launch.nodes=$NODES: the cluster at $1 is not this job's alone"
    ((SECONDS < JOIN_S)) || die 4 "$joined of $NODES nodes joined within $JOIN_S s (launch.join_s): see $LOG_DIR/node-*.log"
    sleep 2
  done
  say "$joined of $NODES nodes have joined"
}

# job_state ADDRESS ID: prints running, succeeded, failed, stopped or unknown. The words decide: the exit
# code of "ray job status" for a failed job depends on Ray's version. What it prints of a failed job ends
# with the job's log, so the first line that names the state is the answer.
job_state() {
  local answer
  answer=$(ray job status --address "$1" "$2" 2>&1 | grep -E -m 1 "(Job|job) '$2'") || : # unknown
  case $answer in
    *"Job '$2' succeeded"*) echo succeeded ;;
    *"Job '$2' failed"*) echo failed ;;
    *"Job '$2' was stopped"*) echo stopped ;;
    *"Status for job '$2'"*) echo running ;;
    *) echo unknown ;;
  esac
}

# launcher: prints the id of the process on this machine that watches the job, if it runs.
launcher() {
  local host pid start_time
  read -r host pid start_time 2>/dev/null <"$STATE_DIR/launcher" || return 0
  # A process with that id but another start time is a later, unrelated one.
  [[ $host == "$HOSTNAME" && $(cut -d ' ' -f 22 "/proc/$pid/stat" 2>/dev/null) == "$start_time" ]] || return 0
  printf '%s\n' "$pid"
}

# follow_launcher: if a launcher runs already, show its log and exit as it ends.
follow_launcher() {
  local pid
  pid=$(launcher)
  [[ -n $pid ]] || return 0
  say "process $pid runs this job already: following it"
  touch -- "$LOG_DIR/job.log"
  tail -n 0 -f --pid "$pid" -- "$LOG_DIR/job.log" || :
  exit "$(cat -- "$STATE_DIR/exit_code" 2>/dev/null || echo 4)"
}

# prepare_job_dir: copy the scripts and the configuration to where all nodes see them, and remove the
# state of an earlier launch.
prepare_job_dir() {
  mkdir -p "$SCRIPT_DIR" "$STATE_DIR" "$LOG_DIR" "$JOB_DIR/checkpoints"
  keep_config
  [[ $HERE -ef $SCRIPT_DIR ]] || cp -- "$HERE"/*.sh "$HERE"/*.py "$HERE"/*.json "$SCRIPT_DIR"/
  rm -f -- "$STATE_DIR"/failed-* "$STATE_DIR/stopping" "$STATE_DIR/exit_code" "$STATE_DIR/job_code"
}

# keep_config: make this launch's configuration the run's; a reader sees the old file or the new one.
keep_config() {
  cp -- "$HERE/config.json" "$JOB_DIR/config.json.new-$$"
  mv -f -- "$JOB_DIR/config.json.new-$$" "$JOB_DIR/config.json"
}

# begin_launch: name this process as the job's launcher, by host, process id and start time.
begin_launch() {
  printf '%s %s %s\n' "$HOSTNAME" "$$" "$(cut -d ' ' -f 22 "/proc/$$/stat")" >"$STATE_DIR/launcher"
}

# end_launch CODE: write the exit code of the job.
end_launch() {
  printf '%s\n' "$1" >"$STATE_DIR/exit_code"
  rm -f -- "$STATE_DIR/launcher"
}
