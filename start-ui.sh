#!/usr/bin/env bash
# Opens the window; the first start makes the environment. "--pair-tool [FOLDER]" opens the pair tool alone.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/scripts/_env.sh"
exec "$PYTHON" "$ROOT/scripts/train_ui.py" "$@"
