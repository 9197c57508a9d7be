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
"$PYTHON" -m mypy & types=$!
trap 'kill "$types" 2>/dev/null || :' EXIT
# a third worker for two cores: tests that start programs wait a twelfth of their time
tests=("$PYTHON" -m pytest -n "${TEST_WORKERS:-3}" --dist worksteal "$@")
if [ -d tests/__pycache__ ]; then
    wait "$types"
    exec "${tests[@]}"
fi
# in a new checkout mypy takes a minute, and each worker would compile all modules and tests for itself
said="$("$PYTHON" -m pytest --collect-only -qq "$@" 2>&1)" || { status=$?; printf '%s\n' "$said"; exit "$status"; }
kill -0 "$types" 2>/dev/null || wait "$types"
status=0
"${tests[@]}" || status=$?
wait "$types"
exit "$status"
