#!/usr/bin/env bash
# Build DeepSpeed's CPUAdam and FusedAdam into its installation: operators.sh VENV. Needs nvcc; no GPU.
#
# Ahead of time, not into TORCH_EXTENSIONS_DIR: what is compiled on first use asks for nvcc at every start, and where
# no GPU is seen, as while an image is built, it would leave the CUDA half out.
set -euo pipefail
venv=${1:?usage: operators.sh VENV}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -n 's/^deepspeed==\([^ ;\\]*\).*/\1/p' "$here/requirements.lock")
# A100, L4, H100 and H200; PTX for what comes after them.
export TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-8.0;8.9;9.0+PTX}
export DS_ACCELERATOR=cuda DS_BUILD_CPU_ADAM=1 DS_BUILD_FUSED_ADAM=1 DS_ENABLE_NINJA=1
# uv and ninja lie beside the interpreter, where install.sh has put them.
PATH="$PATH:$venv/bin" CXX="$here/portable/g++" \
    uv pip install --quiet --python "$venv/bin/python" --compile-bytecode --no-deps --no-cache \
    --no-build-isolation --no-binary deepspeed --reinstall-package deepspeed "deepspeed==$version"
"$venv/bin/python" - <<'PY'
from importlib.util import find_spec

import torch
from deepspeed.git_version_info import accelerator_name, installed_ops
from deepspeed.ops.adam import fused_adam_op

# CPUAdam is found but not loaded: the machine that builds may lack the instructions of the GPU's host.
found = find_spec("deepspeed.ops.adam.cpu_adam_op")
assert found and accelerator_name == "cuda" and installed_ops["cpu_adam"] and installed_ops["fused_adam"], installed_ops
print(f"built for torch {torch.__version__}: {found.origin} {fused_adam_op.__file__}")
PY
