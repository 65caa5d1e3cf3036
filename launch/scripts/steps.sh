# shellcheck shell=bash
# What the scripts share; they source it after settings.sh.

say() { printf '%s agentrl: %s\n' "$(date -u +%H:%M:%S)" "$*" >&2; }

# die CODE MESSAGE: 2 configuration, 3 pre-flight, 4 a service is gone.
die() {
  say "error: $2"
  exit "$1"
}

require_secrets() {
  local name missing=()
  for name in "${SECRETS[@]}"; do
    [[ -n ${!name:-} ]] || missing+=("$name")
  done
  ((${#missing[@]} == 0)) || die 2 "not in the environment: ${missing[*]}: export them before the launch"
}

# export_environment HEAD: what the job reads, besides its secrets.
export_environment() {
  local assignment
  for assignment in "${ENVIRONMENT[@]}"; do
    export "${assignment?}"
  done
  export no_proxy="127.0.0.1,localhost,$1" NO_PROXY="127.0.0.1,localhost,$1"
}

# A node whose pre-flight failed has left a file with its reason.
refuse_failed_nodes() {
  local file
  for file in "$STATE_DIR"/failed-*; do
    [[ -e $file ]] || continue
    die 3 "${file##*/failed-}: $(<"$file")"
  done
}

# wait_for_nodes ADDRESS: until exactly NODES nodes are alive, JOIN_S seconds at most.
wait_for_nodes() {
  local listed joined=0
  SECONDS=0
  while :; do
    refuse_failed_nodes
    listed=$(ray list nodes --address "$1" --filter state=ALIVE --format json --limit 10000 2>/dev/null) || listed=
    joined=$(grep -c '"node_id"' <<<"$listed") || joined=0
    ((joined != NODES)) || break
    ((joined < NODES)) || die 4 "$joined nodes joined, launch.nodes=$NODES: the cluster at $1 is not this job's alone"
    ((SECONDS < JOIN_S)) || die 4 "$joined of $NODES nodes joined within $JOIN_S s (launch.join_s): see $LOG_DIR/node-*.log"
    sleep 2
  done
  say "$joined of $NODES nodes have joined"
}

# prepare_job_dir: the scripts, the run's configuration and the job's state, where all nodes see them.
prepare_job_dir() {
  mkdir -p "$SCRIPT_DIR" "$STATE_DIR" "$LOG_DIR" "$JOB_DIR/checkpoints"
  cp -- "$HERE/config.json" "$JOB_DIR/config.json"
  [[ $HERE -ef $SCRIPT_DIR ]] || cp -- "$HERE"/*.sh "$HERE"/*.py "$HERE"/*.json "$SCRIPT_DIR"/
  rm -f -- "$STATE_DIR"/failed-* "$STATE_DIR/stopping"
}
