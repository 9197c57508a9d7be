# Sourced by the wrappers: finds a Python and makes the environment; sets ROOT and PYTHON. The caller stays in its folder.
ROOT="$(CDPATH="" cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"

find_python() {
    local candidate
    for candidate in "${TASTEMAKER_PYTHON:-}" python3.11 python3.12 python3.13 python3 python; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    command -v python3 || { echo "[setup] no Python found: install Python 3.11 or newer" >&2; return 1; }
}
BASE_PYTHON="$(find_python)" || exit 2
"$BASE_PYTHON" "$ROOT/scripts/bootstrap.py" --quiet "${BOOTSTRAP_ARGS[@]+"${BOOTSTRAP_ARGS[@]}"}" || exit $?
PYTHON="$ROOT/.venv/bin/python"
