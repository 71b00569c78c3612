"""What the GPU, its driver and its allocator say."""

from harness.diagnosis.signatures.signature import Tier, cause, entry

# fmt: off
DEVICE = (
    cause("cuda_oom", "torch-oom",
          r"(?:CUDA|HIP|XPU|NPU) out of memory|torch(?:\.cuda)?\.OutOfMemoryError"
          r"|(?:CUDA|HIP) error:? ?(?:\(?2\)?)?:? out of memory|[Cc]uda failure (?:\d+ )?'out of memory'"
          r"|CUDA driver error: out of memory|RESOURCE_EXHAUSTED: Out of memory|cudaErrorMemoryAllocation"
          r"|cuda runtime error \(2\)|CUDA_ERROR_OUT_OF_MEMORY"
          r"|cudaMalloc\w* failed.{0,300}out of memory",
          needles=("outofmemoryerror", "cuda runtime error (", "cuda_error_out_of_memory",
                   "cudaerrormemoryallocation", "out of memory")),
    cause("cuda_oom", "library-alloc",
          r"CU(?:BLAS|DNN|SPARSE)_STATUS_ALLOC_FAILED|Failed to allocate memory for requested buffer", "medium",
          needles=("_status_alloc_failed", "failed to allocate memory for requested buffer")),
    cause("network_fault", "gpu-fabric",
          r"\bSXid\b.{0,80}(?i:fatal|error|fault)|(?i:nvswitch).{0,120}(?i:fatal|link (?:is )?down|failure|failed)"
          r"|(?i:nvlink).{0,60}(?i:link (?:is )?down|went down|inactive)"
          r"|(?i:gpu fabric).{0,80}(?i:error|fail|degraded)",
          needles=("sxid", "nvswitch", "nvlink", "gpu fabric"),
          advice="Drain the node and check its NVLink fabric (nvidia-smi nvlink -s, the fabric manager's log)."),
    cause("gpu_hardware", "xid", r"Xid \(?.*?\)?: ?(?:48|6[1-4]|74|79|9[245]|1[12]\d|140|143|149)\b",
          needles=("xid ",)),
    cause("gpu_hardware", "ecc-nvlink",
          r"uncorrectable (?:ECC|NVLink) error|fallen off the bus|GPU is lost|uncorrectable ECC|double[- ]bit ECC"
          r"|[Uu]nable to determine the device handle for (?:GPU|gpu)|NVLink error detected|hardware (?:fault"
          r"|stack error)",
          needles=("bit ecc", "fallen off the bus", "hardware fault", "hardware stack error", "gpu is lost",
                   "nvlink error detected", "unable to determine the device handle for ", "uncorrectable ")),
    cause("driver_mismatch", "no-driver",
          r"Found no NVIDIA driver|No CUDA GPUs are available|NVIDIA driver on your system is too old"
          r"|no CUDA-capable device is detected"
          r"|libcuda\.so(?:\.1)?: cannot open|driver not loaded|[Nn]o NVIDIA driver"
          r"|couldn't communicate with the NVIDIA driver",
          needles=("libcuda.so", "couldn't communicate with the nvidia driver", "driver not loaded",
                   "no cuda gpus are available", "no cuda-capable device is detected", "no nvidia driver",
                   "nvidia driver on your system is too old")),
    cause("driver_mismatch", "driver-version",
          r"CUDA driver version is insufficient|Driver/library version mismatch|forward compatibility was attempted"
          r"|unsupported display driver / cuda driver|unsupported toolchain|system not yet initialized"
          r"|Unexpected error from cudaGetDeviceCount",
          needles=("cuda driver version is insufficient", "driver/library version mismatch",
                   "forward compatibility was attempted", "system not yet initialized",
                   "unexpected error from cudagetdevicecount", "unsupported display driver / cuda driver",
                   "unsupported toolchain")),
    cause("driver_mismatch", "no-gpu-runtime",
          r"could not select device driver|Torch not compiled with CUDA enabled|CUDA unknown error", "medium",
          needles=("could not select device driver", "cuda unknown error", "torch not compiled with cuda enabled")),
    cause("cuda_error", "cuda-error",
          r"CUDA error:? (?!out of memory)\S|device-side assert|HIP error: \S|[Cc]uda failure (?:\d+ )?'(?!out of)"
          r"|CUDA_ERROR_(?!OUT_OF_MEMORY)[A-Z_]+|AcceleratorError: CUDA|cudaError\w+:",
          needles=("acceleratorerror: cuda", "cuda error", "cuda failure ", "cuda_error_", "cudaerror",
                   "device-side assert", "hip error: ")),
    cause("cuda_error", "cuda-library",
          r"CUBLAS_STATUS_(?!SUCCESS|ALLOC)\w+|CUDNN_STATUS_(?!SUCCESS|ALLOC)\w+|cuDNN error|cuFFT error"
          r"|cusolver error"
          r"|CUSPARSE_STATUS_(?!SUCCESS|ALLOC)\w+|illegal memory access|cuda runtime error \((?!2\))",
          needles=("cublas_status_", "cuda runtime error (", "cudnn error", "cudnn_status_", "cufft error",
                   "cusolver error", "cusparse_status_", "illegal memory access")),
    entry(Tier.HINT, "cuda_error", "xid-application", r"Xid \(?.*?\)?: ?(?:13|31|32|43|45|68|69)\b", "medium",
          needles=("xid ",)),
)
