#!/usr/bin/env bash
# Create the isolated environment: pinned dependencies, our packages, DeepSpeed's compiled CPU optimizer.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}

"$PYTHON" - <<'PY' || exit 1
import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.exit(f"setup: found Python {sys.version.split()[0]}, expected 3.11 to 3.13; set PYTHON=/path/to/python3.12")
PY
command -v cc >/dev/null || command -v c++ >/dev/null || {
    echo "setup: found no C compiler, DeepSpeed's CPU optimizer needs one; install gcc and g++" >&2; exit 1; }

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
echo "setup: installing pinned dependencies into $VENV (first time: about 5 GB, a minute or two)"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.9
"$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --compile-bytecode -r requirements.lock
"$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --no-deps --editable .
echo "setup: compiling DeepSpeed's CPU optimizer (first time: about a minute)"
"$VENV/bin/python" -m harness setup
