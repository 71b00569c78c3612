"""What the launcher, the engine, the build, the hub, the data and the program itself say."""

from harness.diagnosis.signature import Tier, cause, entry

# fmt: off
NETWORK = (
    cause("hub_download", "hub",
          r"RepositoryNotFoundError|GatedRepoError|LocalEntryNotFoundError|HfHubHTTPError"
          r"|(?<!Local)EntryNotFoundError"
          r"|trying to load it from 'https://huggingface"
          r"|is not a valid model identifier|couldn't connect to .{0,300}huggingface"
          r"|Couldn't reach .{0,300} on the Hub"
          r"|(?:Client|Server) Error.{0,300}huggingface|host='(?:\S*\.)?(?:huggingface\.co|hf\.co)'|gated repo"
          r"|OfflineModeIsEnabled"
          r"|DatasetNotFoundError|cannot find the requested files in the (?:disk|local|cached)"
          r"|outgoing traffic has been disabled"),
    cause("hub_download", "download",
          r"urlopen error|urllib\.error\.HTTPError|Max retries exceeded with url"
          r"|requests\.exceptions\.\w*(?:Connection|Timeout|HTTP)\w*",
          "medium"),
)

PROGRAM = (
    cause("launcher_args", "unrecognized-arguments",
          r"error: unrecognized arguments:|[Nn]o such option:? |not used by the HfArgumentParser"
          r"|unknown command line flag"),
    cause("config_error", "argument-value",
          r"error: the following arguments are required|error: argument .{0,300}: (?:invalid|expected|not allowed)"),
    cause("config_error", "deepspeed-config",
          r"DeepSpeedConfigError|path to an existing deepspeed config|Check batch related parameters"
          r"|Please correct the following DeepSpeed config"
          r"|(?:Expected|Error).{0,300}DeepSpeed ?[Cc]onfig"),
    cause("config_error", "schema",
          r"\d+ validation errors? for|pydantic\S*ValidationError|\bSpecError\b|ConfigAttributeError"
          r"|ConfigCompositionException"),
    cause("config_error", "precision",
          r"[Yy]our setup doesn't support bf16|bf16.{0,300}(?:not supported|isn't supported)|[Tt]ype (?:bf16|fp16"
          r"|fp8) is not supported"),
    cause("jit_build", "extension",
          r"Error building extension|ninja: build stopped|Ninja is required|nvcc fatal|CUDA_HOME (?:does not exist"
          r"|environment variable)"
          r"|Unable to JIT load|Installed CUDA version \S+ does not match|detected CUDA version .{0,300} mismatches"
          r"|unsupported GNU version|torch_extensions/.{0,300}cannot open|[Ff]ailed to find C compiler"
          r""
          r"|ptxas (?:fatal|error)|CUDAMismatchException|MissingCUDAException|\[Errno 2\].{0,300}'?nvcc'?"),
    cause("jit_build", "compile",
          r"BackendCompilerFailed|InductorError|LoweringException|triton.{0,300}CompilationError|OutOfResources"
          r"|PTXASError"
          r"|torch\._dynamo\.exc\.\w+|object has no attribute 'ds_opt_adam'"),
    cause("import_error", "import",
          r"\bModuleNotFoundError\b|\bImportError\b|undefined symbol|cannot open shared object file"
          r"|No module named '?\w"
          r"|version `GLIBC\w*' not found|binary incompatibility|Failed to import transformers|nms does not exist"),
    cause("numerics", "not-finite",
          r"loss scale already at minimum|Minimum loss scale reached|returned nan values in its|[Ll]oss is (?:nan"
          r"|NaN|inf|not finite)"
          r"|is non-finite, so it cannot be clipped|[Ff]ound NaN in|contains either `inf`, `nan`|[Nn]a[Nn] loss"
          r"|[Nn]on-finite (?:loss|grad)"
          r"|NaN (?:detected|encountered)|(?:loss|grad\w*) (?:became|turned|went) (?:nan|NaN|non-finite)"),
    cause("data_error", "data",
          r"in DataLoader worker process|DataLoader timed out after"
          r"|DataLoader worker \(pid.{0,300}exited unexpectedly"
          r"|UnpicklingError|ArrowInvalid"
          r"|DatasetGeneration\w*Error"
          r"|JSONDecodeError|UnidentifiedImageError|expected sequence of length|should probably activate truncation"
          r"|stack expects each tensor|num_samples should be|UnicodeDecodeError|tarfile\.ReadError"
          r"|PytorchStreamReader failed"
          r"|Error while deserializing|received 0 items of ancdata|zlib\.error"),
    cause("preemption", "elastic-sigterm",
          r"Received (?:15|Signals\.SIGTERM|SIGTERM)(?: death signal)|Main process received SIGTERM"
          r"|got signal: (?:15|Signals\.SIGTERM)", "medium"),
    cause("user_cancelled", "interrupt",
          r"Received (?:[12]|Signals\.SIG(?:INT|HUP)) death signal|Main process received SIGINT"
          r"|got signal: (?:[12]\b|Signals\.SIG(?:INT|HUP))"
          r"|^KeyboardInterrupt"),
    entry(Tier.BENIGN, "unknown", "oom-caught",
          r"(?i)(?:\boom\b|out of memory|OutOfMemoryError\b).{0,80}\b(?:caught|ignor(?:ed|ing)|swallowed|continuing"
          r"|will retry|trying again)\b"
          r"|\b(?:caught|ignor(?:ed|ing)|swallowed)\b.{0,80}(?:\boom\b|out of memory|OutOfMemoryError\b)"),
    entry(Tier.HINT, "numerics", "nan-loss", r"(?i:\bloss\S*[\s:='\"=]+(?:tensor\()?-?nan\b)", "medium"),
    entry(Tier.HINT, "jit_build", "linker", r"ld returned \d exit|ld: cannot find -l", "medium"),
)
