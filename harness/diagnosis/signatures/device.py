"""What the GPU, its driver and its allocator say."""

from harness.diagnosis.signature import Tier, cause, entry

# fmt: off
DEVICE = (
    cause("cuda_oom", "torch-oom",
          r"(?:CUDA|HIP|XPU|NPU) out of memory|torch(?:\.cuda)?\.OutOfMemoryError"
          r"|(?:CUDA|HIP) error:? ?(?:\(?2\)?)?:? out of memory|[Cc]uda failure (?:\d+ )?'out of memory'"
          r"|CUDA driver error: out of memory|RESOURCE_EXHAUSTED: Out of memory|cudaErrorMemoryAllocation"
          r"|cuda runtime error \(2\)|CUDA_ERROR_OUT_OF_MEMORY"
          r"|cudaMalloc\w* failed.{0,300}out of memory"),
    cause("cuda_oom", "library-alloc",
          r"CU(?:BLAS|DNN|SPARSE)_STATUS_ALLOC_FAILED|Failed to allocate memory for requested buffer", "medium"),
    cause("gpu_hardware", "xid", r"Xid \(?.*?\)?: ?(?:48|6[1-4]|74|79|9[245]|1[12]\d|140|143|149)\b"),
    cause("gpu_hardware", "ecc-nvlink",
          r"uncorrectable (?:ECC|NVLink) error|fallen off the bus|GPU is lost|uncorrectable ECC|double[- ]bit ECC"
          r"|[Uu]nable to determine the device handle for (?:GPU|gpu)|NVLink error detected|hardware (?:fault"
          r"|stack error)"),
    cause("driver_mismatch", "no-driver",
          r"Found no NVIDIA driver|No CUDA GPUs are available|NVIDIA driver on your system is too old"
          r"|no CUDA-capable device is detected"
          r"|libcuda\.so(?:\.1)?: cannot open|driver not loaded|[Nn]o NVIDIA driver"
          r"|couldn't communicate with the NVIDIA driver"),
    cause("driver_mismatch", "driver-version",
          r"CUDA driver version is insufficient|Driver/library version mismatch|forward compatibility was attempted"
          r"|unsupported display driver / cuda driver|unsupported toolchain|system not yet initialized"
          r"|Unexpected error from cudaGetDeviceCount"),
    cause("driver_mismatch", "no-gpu-runtime",
          r"could not select device driver|Torch not compiled with CUDA enabled|CUDA unknown error", "medium"),
    cause("cuda_error", "cuda-error",
          r"CUDA error:? (?!out of memory)\S|device-side assert|HIP error: \S|[Cc]uda failure (?:\d+ )?'(?!out of)"
          r"|CUDA_ERROR_(?!OUT_OF_MEMORY)[A-Z_]+|AcceleratorError: CUDA|cudaError\w+:"),
    cause("cuda_error", "cuda-library",
          r"CUBLAS_STATUS_(?!SUCCESS|ALLOC)\w+|CUDNN_STATUS_(?!SUCCESS|ALLOC)\w+|cuDNN error|cuFFT error"
          r"|cusolver error"
          r"|CUSPARSE_STATUS_(?!SUCCESS|ALLOC)\w+|illegal memory access|cuda runtime error \((?!2\))"),
    entry(Tier.HINT, "cuda_error", "xid-application", r"Xid \(?.*?\)?: ?(?:13|31|32|43|45|68|69)\b", "medium"),
)
