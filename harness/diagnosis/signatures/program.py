"""What the launcher, the engine, the build, the hub, the data and the program itself say."""

from harness.diagnosis.signature import Tier, cause, entry

# fmt: off
PROGRAM = (
    cause("launcher_args", "unrecognized-arguments", ("unrecognized arguments", "no such option", "not used by the hfargumentparser"),
          r"error: unrecognized arguments:|[Nn]o such option:? |not used by the HfArgumentParser|unknown command line flag"),
    cause("config_error", "argument-value", ("the following arguments are required", "invalid choice", "error: argument"),
          r"error: the following arguments are required|error: argument .*: (?:invalid|expected|not allowed)"),
    cause("config_error", "deepspeed-config", ("deepspeedconfigerror", "check batch related", "train_batch_size", "deepspeed config"),
          r"DeepSpeedConfigError|Check batch related parameters|Please correct the following DeepSpeed config"
          r"|(?:Expected|Error).*DeepSpeed ?[Cc]onfig"),
    cause("config_error", "schema", ("validation error", "validationerror", "specerror", "configattributeerror", "configcompositionexception"),
          r"\d+ validation errors? for|pydantic\S*ValidationError|\bSpecError\b|ConfigAttributeError|ConfigCompositionException"),
    cause("config_error", "precision", ("bf", "fp"),
          r"[Yy]our setup doesn't support bf16|bf16.*(?:not supported|isn't supported)|[Tt]ype (?:bf16|fp16|fp8) is not supported"),
    cause("jit_build", "extension", ("error building extension", "ninja", "nvcc", "cuda_home", "unable to jit load", "jit",
                                     "installed cuda version", "detected cuda version", "unsupported gnu", "torch_extensions",
                                     "c compiler", "ld returned", "cannot find -l", "ptxas"),
          r"Error building extension|ninja: build stopped|Ninja is required|nvcc fatal|CUDA_HOME (?:does not exist|environment variable)"
          r"|Unable to JIT load|Installed CUDA version \S+ does not match|detected CUDA version .* mismatches"
          r"|unsupported GNU version|torch_extensions/.*cannot open|[Ff]ailed to find C compiler|ld returned \d|cannot find -l"
          r"|ptxas (?:fatal|error)|CUDAMismatchException|MissingCUDAException|\[Errno 2\].*'?nvcc'?"),
    cause("jit_build", "compile", ("backendcompilerfailed", "inductorerror", "loweringexception", "compilationerror", "outofresources",
                                   "subprocproexception", "ptxaserror", "torch._dynamo.exc", "ds_opt_adam"),
          r"BackendCompilerFailed|InductorError|LoweringException|triton.*CompilationError|OutOfResources|PTXASError"
          r"|torch\._dynamo\.exc\.\w+|object has no attribute 'ds_opt_adam'"),
    cause("import_error", "import", ("modulenotfounderror", "importerror", "undefined symbol", "cannot open shared object", "no module named",
                                     "glibcxx", "glibc_", "binary incompatibility", "failed to import", "nms does not exist"),
          r"\bModuleNotFoundError\b|\bImportError\b|undefined symbol|cannot open shared object file|No module named '?\w"
          r"|version `GLIBC\w*' not found|binary incompatibility|Failed to import transformers|nms does not exist"),
    cause("hub_download", "hub",
          ("huggingface", "hugging face", "hub", "hfhubhttperror", "repositorynotfound", "gatedrepo", "localentrynotfound",
           "valid model identifier", "couldn't reach", "entrynotfounderror", "gated repo", "offlinemode", "datasetnotfound"),
          r"RepositoryNotFoundError|GatedRepoError|LocalEntryNotFoundError|HfHubHTTPError|(?<!Local)EntryNotFoundError"
          r"|is not a valid model identifier|couldn't connect to .*huggingface|Couldn't reach .* on the Hub"
          r"|(?:Client|Server) Error.*huggingface|host='(?:\S*\.)?(?:huggingface\.co|hf\.co)'|gated repo|OfflineModeIsEnabled"
          r"|DatasetNotFoundError|cannot find the requested files in the (?:disk|local|cached)|outgoing traffic has been disabled"),
    cause("hub_download", "download", ("urlopen error", "httperror", "max retries exceeded", "connectionerror"),
          r"urlopen error|urllib\.error\.HTTPError|Max retries exceeded with url|requests\.exceptions\.\w*(?:Connection|Timeout|HTTP)\w*",
          "medium"),
    cause("numerics", "not-finite",
          ("loss scale", "nan", "non-finite", "infinite", "not finite", "is inf", "`inf`"),
          r"loss scale already at minimum|Minimum loss scale reached|returned nan values in its|[Ll]oss is (?:nan|NaN|inf|not finite)"
          r"|is non-finite, so it cannot be clipped|[Ff]ound NaN in|contains either `inf`, `nan`|[Nn]a[Nn] loss|[Nn]on-finite (?:loss|grad)"
          r"|NaN (?:detected|encountered)|(?:loss|grad\w*) (?:became|turned|went) (?:nan|NaN|non-finite)"),
    cause("data_error", "data",
          ("dataloader worker", "unpicklingerror", "arrowinvalid", "datasetgeneration", "jsondecodeerror", "unidentifiedimage",
           "expected sequence of length", "activate truncation", "stack expects each tensor", "num_samples", "unicodedecodeerror",
           "readerror", "failed reading", "error while deserializing", "ancdata", "zlib.error"),
          r"in DataLoader worker process|DataLoader worker \(pid.*exited unexpectedly|UnpicklingError|ArrowInvalid|DatasetGeneration\w*Error"
          r"|JSONDecodeError|UnidentifiedImageError|expected sequence of length|should probably activate truncation"
          r"|stack expects each tensor|num_samples should be|UnicodeDecodeError|tarfile\.ReadError|PytorchStreamReader failed"
          r"|Error while deserializing|received 0 items of ancdata|zlib\.error"),
    cause("preemption", "elastic-sigterm", ("death signal", "got signal", "sigterm"),
          r"Received (?:15|Signals\.SIGTERM|SIGTERM)(?: death signal)|got signal: (?:15|Signals\.SIGTERM)", "medium"),
    cause("user_cancelled", "interrupt", ("death signal", "got signal", "keyboardinterrupt"),
          r"Received (?:[12]|Signals\.SIG(?:INT|HUP)) death signal|got signal: (?:[12]\b|Signals\.SIG(?:INT|HUP))|^KeyboardInterrupt"),
    entry(Tier.HINT, "numerics", "nan-loss", "nan", r"(?i:\bloss\S*[\s:='\"=]+(?:tensor\()?-?(?:nan|inf)\b)", "medium"),
)
