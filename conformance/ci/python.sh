# Sourced by the scripts beside it: $root is the checkout, $python the interpreter that has portable.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
if ! command -v "$python" >/dev/null; then
    echo "${0##*/}: $python does not exist: run conformance/ci/install.sh first, or set PYTHON" >&2
    exit 2
fi
