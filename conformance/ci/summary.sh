#!/usr/bin/env bash
# summary.sh OUTDIR   print compare.sh's summary: to the job summary on GitHub, else to standard output
set -euo pipefail

if (($# != 1)); then
    echo "usage: summary.sh OUTDIR" >&2
    exit 2
fi
page=$1/comparison/summary.md
if [[ ! -s $page ]]; then
    echo "summary.sh: $page does not exist: compare.sh writes it" >&2
    exit 2
fi
if [[ -n ${GITHUB_STEP_SUMMARY:-} ]]; then
    cat "$page" >>"$GITHUB_STEP_SUMMARY"
else
    cat "$page"
fi
