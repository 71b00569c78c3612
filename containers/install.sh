#!/usr/bin/env bash
# Make the environment of the image: install.sh VENV [PYTHON]. The Dockerfile runs it, and so does the test of the
# image's environment, for no image can be built where the tests run.
set -euo pipefail
venv=${1:?usage: install.sh VENV [PYTHON]}
python=${2:-python3}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"$python" -m venv "$venv"
command -v uv >/dev/null || { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.9; PATH="$venv/bin:$PATH"; }
# Every wheel by its hash: requirements.lock beside this file holds the versions of the repository's own lock.
uv pip install --quiet --python "$venv/bin/python" --compile-bytecode --require-hashes -r "$here/requirements.lock"
