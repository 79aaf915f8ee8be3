#!/usr/bin/env bash
# run.sh DEVICE TIER OUTDIR [OPTION...]   run the suite on a device; exits with the code of portable-conformance run
#
# Writes OUTDIR/NAME.json, NAME.xml (JUnit) and NAME.html; NAME is DEVICE with "-" for ":".
#
# OPTION                further options of `portable-conformance run`: --require-hardware, --fraction 1,4
# CONFORMANCE_OPTIONS   more options, separated by spaces
# PYTHON                the interpreter; default: the .venv that install.sh made
set -euo pipefail

# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
if (($# < 3)); then
    echo "usage: run.sh DEVICE TIER OUTDIR [OPTION...]" >&2
    exit 2
fi
device=$1 tier=$2 out=$3
shift 3
read -ra more <<<"${CONFORMANCE_OPTIONS:-}"
options=("$@" "${more[@]}")
name=${device//:/-}

mkdir -p "$out"
if [[ " ${options[*]} " != *" --resume "* ]]; then
    rm -f "$out/$name".{json,xml,html} # a failed run must not leave an old record behind
fi
exec "$python" -m portable.conformance.commands.cli run --device "$device" --tier "$tier" \
    --record "$out/$name.json" --junit "$out/$name.xml" --html "$out/$name.html" "${options[@]}"
