#!/usr/bin/env bash
# Everything CI checks without running a test. Stops at the first failure.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${VENV:-.venv}/bin
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/snakefmt" --check Snakefile workflow/rules
"$bin/snakemake" --lint >/dev/null
bash -n scripts/*.sh .ci/run
