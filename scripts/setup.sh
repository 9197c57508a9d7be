#!/usr/bin/env bash
# Makes or refreshes the environment of the program.
set -euo pipefail
BOOTSTRAP_ARGS=("$@")
source "$(dirname -- "${BASH_SOURCE[0]}")/_env.sh"
echo "[setup] ready: $PYTHON"
