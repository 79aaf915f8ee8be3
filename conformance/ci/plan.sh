#!/usr/bin/env bash
# plan.sh [FILE]   decides what a pipeline runs: the tier, and on which GPU runners
#
# Prints name=value lines and appends them to FILE: tier, minutes (the time limit of a job), nvidia and amd
# (runner labels; without one the job is skipped with a notice) and expect (names of the records to expect).
#
# EVENT           what started the pipeline: pull_request, push, workflow_dispatch, ...
# TIER            the tier to run; default: smoke for a pull request, else core
# TRUSTED         false: the change comes from outside and must not run on our GPU runners
# NVIDIA_RUNNER   the label of a runner with an NVIDIA GPU; empty: none
# AMD_RUNNER      the label of a runner with an AMD GPU; empty: none
set -euo pipefail

notice() {
    if [[ ${GITHUB_ACTIONS:-} == true ]]; then
        echo "::notice title=$1::$2"
    else
        echo "Notice: $1: $2"
    fi
}

# runner VENDOR VARIABLE   set $label to the runner's label, or to nothing with a notice
runner() {
    label=${!2:-}
    if [[ -z $label ]]; then
        notice "$1 skipped" "the variable $2 names no runner"
    elif [[ ! $label =~ ^[A-Za-z0-9._-]+$ ]]; then
        echo "plan.sh: $2: '$label' is no label: expected letters, digits, '.', '_' and '-'" >&2
        exit 2
    elif [[ ${TRUSTED:-true} == false ]]; then
        notice "$1 skipped" "a change from outside does not run on the machine of $2"
        label=
    fi
}

tier=${TIER:-}
if [[ -z $tier ]]; then
    if [[ ${EVENT:-} == pull_request ]]; then tier=smoke; else tier=core; fi
fi
case $tier in
smoke) minutes=30 ;;
core) minutes=90 ;;
full) minutes=360 ;;
*)
    echo "plan.sh: TIER=$tier: expected smoke, core or full" >&2
    exit 2
    ;;
esac
runner NVIDIA NVIDIA_RUNNER
nvidia=$label
runner AMD AMD_RUNNER
amd=$label
expect=cpu,rocm-gfx942,rocm-gfx950,rocm-gfx1100${nvidia:+,cuda}${amd:+,rocm}
lines=("tier=$tier" "minutes=$minutes" ${nvidia:+"nvidia=$nvidia"} ${amd:+"amd=$amd"} "expect=$expect")
printf '%s\n' "${lines[@]}" | tee -a "${1:-/dev/null}"
