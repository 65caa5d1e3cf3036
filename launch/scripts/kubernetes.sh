#!/usr/bin/env bash
# Hand the RayJob to the KubeRay operator. One of this name that is over must be deleted first.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec kubectl apply --filename "$HERE/rayjob.json"
