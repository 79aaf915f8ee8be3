#!/usr/bin/env bash
# install.sh [EXTRAS]   install this checkout with the extras (comma separated: cuda, rocm, emulate)
#
# PYTHON                    the interpreter to install into; default: a .venv made in the checkout with python3
# CONFORMANCE_TORCH_INDEX   package index of torch, for example https://download.pytorch.org/whl/cpu
#
# An installed torch is kept, whatever constraints.txt says: it was built for the GPU.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
extras=${1:-}
python=${PYTHON:-$root/.venv/bin/python}

if [[ -z ${PYTHON:-} && ! -x $python ]]; then
    python3 -m venv "$root/.venv"
fi
pip=("$python" -m pip --disable-pip-version-check --no-input)

torch=$("$python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' 2>/dev/null) ||
    torch=
if [[ -z $torch && -n ${CONFORMANCE_TORCH_INDEX:-} ]]; then
    torch=$(grep -m1 '^torch==' "$root/constraints.txt")
    "${pip[@]}" install --quiet --index-url "$CONFORMANCE_TORCH_INDEX" "$torch"
fi

constraints=$root/constraints.txt
if [[ -n $torch && $torch != "$(grep -m1 '^torch==' "$constraints")" ]]; then
    echo "keeping $torch"
    constraints=$(mktemp)
    trap 'rm -f "$constraints"' EXIT
    # torch itself pins the versions of its exact requirements.
    { grep -vE '^(torch|triton)==' "$root/constraints.txt"; echo "$torch"; } >"$constraints"
fi
"${pip[@]}" install --quiet --constraint "$constraints" setuptools
"${pip[@]}" install --quiet --constraint "$constraints" --no-build-isolation --editable "$root${extras:+[$extras]}"
(cd / && "$python" -m portable info)
