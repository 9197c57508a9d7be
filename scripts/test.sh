#!/usr/bin/env bash
# Makes the environment and runs every check: style, types, tests. Arguments go to pytest.
set -euo pipefail
BOOTSTRAP_ARGS=(--dev)
source "$(dirname -- "${BASH_SOURCE[0]}")/_env.sh"
cd -- "$ROOT"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
"$PYTHON" -m ruff check .
"$PYTHON" -m mypy
exec "$PYTHON" -m pytest -n "${TEST_WORKERS:-2}" "$@"
