# shellcheck shell=bash
# What .ci/run and .ci/nightly share: the system's packages, virtual environments, and steps. It is sourced.

python=${PYTHON:-python3}
venv=${VENV:-.venv}

# The tests' own variables. Bytecode: each of a thousand processes would compile again what it imports.
export CI=1
unset PYTHONDONTWRITEBYTECODE

step() {
  printf '\n== %s\n' "$*"
  "$@"
}

# Mirrors and networks fail for seconds at a time: an installation gets three tries before it counts as failed.
try() {
  local attempt
  for attempt in 1 2 3; do
    "$@" && return 0
    printf 'failed (try %d of 3): %s\n' "$attempt" "$*" >&2
    ((attempt == 3)) || sleep $((attempt * 10))
  done
  return 1
}

apt() {
  local as_root=()
  ((EUID == 0)) || as_root=(sudo -n)
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=120 "$@"
}

# Tests that need a package which cannot be installed say so themselves. One by one: a release may lack some.
install_system_packages() {
  local package missing=() wanted=(bubblewrap:bwrap git:git iproute2:ip shellcheck:shellcheck uidmap:newuidmap)
  wanted+=(podman:podman catatonit:catatonit runc:runc iptables:iptables netavark:/usr/lib/podman/netavark)
  wanted+=(fish:fish zsh:zsh npm:npm)
  for package in "${wanted[@]}"; do
    command -v "${package#*:}" >/dev/null || missing+=("${package%:*}")
  done
  ((${#missing[@]})) || return 0
  try apt update -q || true
  for package in "${missing[@]}"; do
    try apt install -qy --no-install-recommends "$package" || printf 'could not install: %s\n' "$package" >&2
  done
}

make_venv() {
  [[ -x $1/bin/pip ]] && return
  "$python" -c 'import ensurepip' 2>/dev/null || { try apt update -q && try apt install -qy python3-venv; }
  try "$python" -m venv --clear "$1"
}

# Modules are compiled when they are imported: to compile all 24,000 of torch, transformers, sympy and Ray takes minutes.
install() {
  local target=$1
  shift
  try "$target/bin/pip" install -q --disable-pip-version-check --no-compile "$@"
}

# The system's packages beside Python's: each waits for the network and for one core.
prepare() {
  local log
  log=$(mktemp)
  install_system_packages >"$log" 2>&1 &
  local system=$!
  step make_venv "$venv"
  step install "$venv" -c constraints.txt -e '.[dev]'
  printf '\n== install_system_packages\n'
  wait "$system" || true
  grep -a '^could not install\|^failed' "$log" || true
  rm -f "$log"
}

lint() {
  step "$venv/bin/ruff" check . && step "$venv/bin/ruff" format --check . &&
    { ! command -v shellcheck >/dev/null || step shellcheck .ci/*; }
}

check_sources() {
  step "$venv/bin/lint-imports" --no-cache && step "$venv/bin/mkdocs" build --strict && step "$venv/bin/mypy"
}
