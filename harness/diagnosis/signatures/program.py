"""What the launcher, the engine, the build, the hub, the data and the program itself say."""

from harness.diagnosis.signatures.signature import Tier, cause, entry

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
          r"|outgoing traffic has been disabled",
          needles=("cannot find the requested files in the ", "client error", "server error",
                   "couldn't connect to ", "couldn't reach ", "datasetnotfounderror", "entrynotfounderror",
                   "gated repo", "gatedrepoerror", "hfhubhttperror", "host='", "is not a valid model identifier",
                   "offlinemodeisenabled", "outgoing traffic has been disabled", "repositorynotfounderror",
                   "trying to load it from 'https://huggingface")),
    cause("hub_download", "download",
          r"urlopen error|urllib\.error\.HTTPError|Max retries exceeded with url"
          r"|requests\.exceptions\.\w*(?:Connection|Timeout|HTTP)\w*",
          "medium",
          needles=("max retries exceeded with url", "requests.exceptions.", "urllib.error.httperror",
                   "urlopen error")),
)

PROGRAM = (
    cause("launcher_args", "unrecognized-arguments",
          r"error: unrecognized arguments:|[Nn]o such option:? |not used by the HfArgumentParser"
          r"|unknown command line flag",
          needles=("error: unrecognized arguments:", "no such option", "not used by the hfargumentparser",
                   "unknown command line flag")),
    cause("config_error", "argument-value",
          r"error: the following arguments are required|error: argument .{0,300}: (?:invalid|expected|not allowed)",
          needles=("error: argument ", "the following arguments are required")),
    cause("config_error", "deepspeed-config",
          r"DeepSpeedConfigError|path to an existing deepspeed config|Check batch related parameters"
          r"|Please correct the following DeepSpeed config"
          r"|(?:Expected|Error).{0,300}DeepSpeed ?[Cc]onfig",
          needles=("check batch related parameters", "deepspeedconfig", "deepspeed config")),
    cause("config_error", "schema",
          r"\d+ validation errors? for|pydantic\S*ValidationError|\bSpecError\b|ConfigAttributeError"
          r"|ConfigCompositionException",
          needles=(" validation error", "configattributeerror", "configcompositionexception", "specerror",
                   "validationerror")),
    cause("config_error", "precision",
          r"[Yy]our setup doesn't support bf16|bf16.{0,300}(?:not supported|isn't supported)|[Tt]ype (?:bf16|fp16"
          r"|fp8) is not supported",
          needles=("isn't supported", "not supported", "your setup doesn't support bf")),
    cause("jit_build", "extension",
          r"Error building extension|ninja: build stopped|Ninja is required|nvcc fatal|CUDA_HOME (?:does not exist"
          r"|environment variable)"
          r"|Unable to JIT load|Installed CUDA version \S+ does not match|detected CUDA version .{0,300} mismatches"
          r"|unsupported GNU version|torch_extensions/.{0,300}cannot open|[Ff]ailed to find C compiler"
          r""
          r"|ptxas (?:fatal|error)|CUDAMismatchException|MissingCUDAException|\[Errno 2\].{0,300}'?nvcc'?",
          needles=("nvcc", "cuda_home ", "cudamismatchexception", "detected cuda version ",
                   "error building extension", "failed to find c compiler", "installed cuda version ",
                   "missingcudaexception", "ninja is required", "ninja: build stopped", "ptxas ",
                   "torch_extensions/", "unable to jit load", "unsupported gnu version")),
    cause("jit_build", "compiler-called",
          r"fatal error: [\w./+-]+\.h(?:pp)?: No such file|^compilation terminated\."
          r"|Command '?\[?['\"]?(?:\S*/)?(?:\w+-)*"
          r"(?:gcc|g\+\+|cc|c\+\+|clang\+*|nvcc|hipcc|ninja|ptxas)(?:-\d+)?['\" ,]"
          r".{0,2000}returned non-zero exit status",
          needles=("fatal error: ", "compilation terminated.", "returned non-zero exit status"),
          advice="Install what the compiler misses; for Python.h that is the Python development package."),
    cause("jit_build", "compile",
          r"BackendCompilerFailed|InductorError|LoweringException|triton.{0,300}CompilationError|OutOfResources"
          r"|PTXASError"
          r"|torch\._dynamo\.exc\.\w+|object has no attribute 'ds_opt_adam'",
          needles=("backendcompilerfailed", "compilationerror", "inductorerror", "loweringexception",
                   "object has no attribute 'ds_opt_adam'", "outofresources", "ptxaserror", "torch._dynamo.exc.")),
    cause("import_error", "import",
          r"\bModuleNotFoundError\b|\bImportError\b|undefined symbol|cannot open shared object file"
          r"|No module named '?\w"
          r"|version `GLIBC\w*' not found|binary incompatibility|Failed to import transformers|nms does not exist",
          needles=("binary incompatibility", "cannot open shared object file", "failed to import transformers",
                   "importerror", "modulenotfounderror", "nms does not exist", "no module named ",
                   "undefined symbol", "version `glibc")),
    cause("numerics", "not-finite",
          r"loss scale already at minimum|Minimum loss scale reached|returned nan values in its|[Ll]oss is (?:nan"
          r"|NaN|inf|not finite)"
          r"|is non-finite, so it cannot be clipped|[Ff]ound NaN in|contains either `inf`, `nan`|[Nn]a[Nn] loss"
          r"|[Nn]on-finite (?:loss|grad)"
          r"|NaN (?:detected|encountered)|(?:loss|grad\w*) (?:became|turned|went) (?:nan|NaN|non-finite)",
          needles=("loss is nan", "nan loss", "nan values in its", "nan detected", "nan encountered", "found nan in",
                   "became nan",
                   "turned nan", "went nan", "`nan`", "finite", "loss is inf", "scale already at minimum",
                   "minimum loss scale reached")),
    cause("data_error", "worker-exited", r"DataLoader worker \(pid.{0,300}exited unexpectedly", "medium",
          needles=("dataloader worker (pid",)),
    cause("data_error", "data",
          r"in DataLoader worker process|DataLoader timed out after"
          r"|UnpicklingError|ArrowInvalid"
          r"|DatasetGeneration\w*Error"
          r"|JSONDecodeError|UnidentifiedImageError|expected sequence of length|should probably activate truncation"
          r"|stack expects each tensor|num_samples should be|UnicodeDecodeError|tarfile\.ReadError"
          r"|PytorchStreamReader failed"
          r"|Error while deserializing|received 0 items of ancdata|zlib\.error",
          needles=("arrowinvalid", "dataloader timed out after", "datasetgeneration",
                   "error while deserializing", "expected sequence of length", "in dataloader worker process",
                   "jsondecodeerror", "num_samples should be", "pytorchstreamreader failed", " items of ancdata",
                   "should probably activate truncation", "stack expects each tensor", "tarfile.readerror",
                   "unicodedecodeerror", "unidentifiedimageerror", "unpicklingerror", "zlib.error")),
    cause("preemption", "elastic-sigterm",
          r"Received (?:15|Signals\.SIGTERM|SIGTERM)(?: death signal)|Main process received SIGTERM"
          r"|got signal: (?:15|Signals\.SIGTERM)", "medium",
          needles=(" death signal", "got signal: ", "main process received sigterm")),
    cause("user_cancelled", "interrupt",
          r"Received (?:[12]|Signals\.SIG(?:INT|HUP)) death signal|Main process received SIGINT"
          r"|got signal: (?:[12]\b|Signals\.SIG(?:INT|HUP))"
          r"|^KeyboardInterrupt",
          needles=(" death signal", "got signal: ", "keyboardinterrupt", "main process received sigint")),
    entry(Tier.BENIGN, "unknown", "oom-caught",
          r"(?i)(?:[ (\[:=]oom\b|\boom[ :,!]|out of memory|OutOfMemoryError\b).{0,80}"
          r"\b(?:caught|ignor(?:ed|ing)|swallowed|continuing"
          r"|will retry|trying again)\b"
          r"|\b(?:caught|ignor(?:ed|ing)|swallowed)\b.{0,80}"
          r"(?:[ (\[:=]oom\b|\boom[ :,!]|out of memory|OutOfMemoryError\b)",
          needles=(" oom", "(oom", "[oom", ":oom", "=oom", "oom ", "oom:", "oom,", "oom!", "out of memory",
                   "outofmemoryerror")),
    entry(Tier.HINT, "numerics", "nan-loss", r"(?i:\b(?:loss|grad[_ ]?norm)\S*[\s:='\"=]+(?:tensor\()?-?nan\b)",
          "medium",
          needles=(" nan", "\tnan", ":nan", "=nan", "'nan", '"nan', "(nan", "-nan")),
    entry(Tier.HINT, "jit_build", "linker", r"ld returned \d exit|ld: cannot find -l", "medium",
          needles=("ld returned ", "ld: cannot find -l")),
    entry(Tier.BENIGN, "unknown", "long-work",
          r"^\s*(?i:tokeni[sz]\w+|packing|preprocess\w*|running tokenizer|map(?= \(|:)|filter(?= \(|:)"
          r"|generating \w+ split|grouping|download\w*|fetching"
          r"|loading checkpoint shards|building \w+ index|caching)[^|]{0,60}?:? {1,6}\d+%",
          needles=("tokeni", "packing", "preprocess", "running tokenizer", "map (", "map:", "filter (",
                   "filter:", "generating ", "grouping", "download",
                   "fetching", "loading checkpoint", "building ", "caching")),
)
