#!/usr/bin/env bash
# compare.sh OUTDIR...   compare every pair of records in the folders
#
# Prints the tables and writes them to comparison/ in the first folder: summary.md, and an HTML page for each
# pair. Exit codes: 0 all agree, 1 an unexplained disagreement or a missing record, 2 cannot be compared.
#
# CONFORMANCE_EXPECT    names of records that must exist, separated by commas: cpu,rocm-gfx942
# PYTHON                the interpreter; default: the .venv that install.sh made
set -euo pipefail

# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
if (($# < 1)); then
    echo "usage: compare.sh OUTDIR..." >&2
    exit 2
fi
IFS=", " read -ra expected <<<"${CONFORMANCE_EXPECT:-}"
exec "$python" -m portable.conformance.ci.pairs "$@" --out "$1/comparison" --expect "${expected[@]}"
