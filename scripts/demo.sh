#!/usr/bin/env bash
# The demo journey: pairs, preference training, a report and a before/after picture.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_env.sh"
exec "$PYTHON" "$ROOT/scripts/make_demo.py" journey "$@"
