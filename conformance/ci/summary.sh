#!/usr/bin/env bash
# summary.sh OUTDIR   show what compare.sh found: in the job's summary on GitHub, else on standard output
set -euo pipefail

if (($# != 1)); then
    echo "usage: summary.sh OUTDIR" >&2
    exit 2
fi
page=$1/comparison/summary.md
if [[ ! -s $page ]]; then
    echo "summary.sh: $page is not there: compare.sh writes it" >&2
    exit 2
fi
if [[ -n ${GITHUB_STEP_SUMMARY:-} ]]; then
    cat "$page" >>"$GITHUB_STEP_SUMMARY"
else
    cat "$page"
fi
