#!/usr/bin/env bash
# Makes the environment and runs every check: style, types, tests. Arguments go to pytest.
# --quick: no windows, no child processes, one model family, no run for each setting; two minutes instead of some ten.
set -euo pipefail
BOOTSTRAP_ARGS=(--dev)
source "$(dirname -- "${BASH_SOURCE[0]}")/_env.sh"
cd -- "$ROOT"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
if [ "${1:-}" = --quick ]; then
    set -- "$@" tests/house tests/test_documents.py --ignore=tests/contracts/test_settings_act.py
    for room in contracts curation objective pipeline rollout runner spec util; do set -- "$@" "tests/$room"; done
fi
"$PYTHON" -m ruff check .
"$PYTHON" -m mypy
exec "$PYTHON" -m pytest -n "${TEST_WORKERS:-2}" --dist worksteal "$@"
