"""What NCCL, gloo, the store and the watchdog say, and the launcher, the engine, the hub, the data and the program."""

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


_W, _M = Tier.WATCHDOG, Tier.MESSENGER

# fmt: off
COMMUNICATION = (
    cause("network_fault", "ib-completion",
          r"NET/IB.{0,60}Got completion.{0,120}(?:status=|error |status )1[23]\b"
          r"|(?:IBV_WC_|)(?:RNR_)?RETRY_EXC_ERR|[Tt]ransport retry count exceeded|RNR retry (?:count|counter) exceeded",
          needles=("got completion", "retry_exc_err", "retry count", "retry counter")),
    cause("network_fault", "ib-port",
          r"Got async (?:fatal )?event ?: ?(?:port err\w*|device fatal|link down)|IBV_EVENT_(?:PORT_ERR|DEVICE_FATAL)"
          r"|mlx5_\w+.{0,120}(?:[Ll]ink (?:is )?down|port_state.{0,20}DOWN|health compromised)"
          r"|NETDEV WATCHDOG|NIC Link is Down",
          needles=("got async", "ibv_event_", "mlx", "netdev watchdog", "nic link is down")),
    cause("network_fault", "ofi-completion",
          r"NET/OFI.{0,200}(?:completed with error|[Uu]nreachable remote|[Uu]nresponsive receiver)",
          needles=("net/ofi",)),
    cause("network_fault", "socket-lost",
          r"NCCL WARN.{0,200}(?:recv|send|read|write|progress)\w*\b.{0,160}"
          r"(?:No route to host|Network is unreachable|Connection timed out|Host is down)",
          needles=("no route to host", "network is unreachable", "connection timed out", "host is down")),
    cause("collective_wedge", "nccl-mismatch",
          r"[Mm]ismatched collective|NCCL WARN.{0,200}[Cc]ollective.{0,60}mismatch",
          needles=("mismatched collective", "mismatch"),
          advice="Make every rank call the same collectives in the same order; start at the rank that NCCL names."),
    entry(Tier.HINT, "rendezvous", "late-rank",
          r"(?:store->\w+\(.{0,200}|retrieving ncclUniqueId.{0,300}|c10d? key-value store.{0,300})"
          r"(?:Socket Timeout|[Ww]ait timeout|[Tt]imed out|[Tt]imeout)",
          "medium",
          needles=("store->", "ncclUniqueId".lower(), "key-value store"),
          advice="Find out what the late rank was doing (data, download, compilation): do it before the process group"
                 " starts, or raise the timeout of init_process_group."),
    entry(_W, "collective_wedge", "nccl-watchdog",
          r"[Cc]aught collective operation timeout|Timeout at NCCL work:|dump signal due to a collective timeout"
          r"|[Oo]bserved flight recorder dump signal|[Rr]eceived a (?:global )?timeout (?:signal )?from another rank"
          r"|signal from another rank.{0,80}timeout",
          needles=("caught collective operation timeout", "timeout at nccl work:", "dump signal",
                   "timeout from another rank", "timeout signal from another rank", "signal from another rank")),
    entry(_W, "collective_wedge", "heartbeat-monitor",
          r"HeartbeatMonitor.{0,300}stuck|watchdog (?:got stuck|hang)|[Ww]atchdog thread (?:is|got) stuck"
          r"|[Hh]eartbeat monitor timed out",
          needles=("heartbeat monitor timed out", "heartbeatmonitor", "watchdog ")),
    entry(_W, "collective_wedge", "gloo-mismatch",
          r"op\.preamble\.length <= op\.nbytes|Is there a distributed collective mismatch",
          needles=("is there a distributed collective mismatch", "op.preamble.length <= op.nbytes")),
    entry(_W, "collective_wedge", "desync",
          r"Detected mismatch between collectives|[Dd]etected (?:a )?desync"
          r"|monitored_?[bB]arrier.{0,300}(?:timeout|not"
          r"|fail|received errors)"
          r"|[Rr]anks? \d.{0,300} failed to pass monitoredBarrier",
          needles=("desync", "detected mismatch between collectives", "monitored")),
    entry(_W, "collective_wedge", "gloo-timeout",
          r"(?:gloo/transport|gloo).{0,300}[Tt]imed? ?out (?:after )?waiting|Timed out waiting \d+ms for (?:send"
          r"|recv)"
          r"|Application timeout caused pair closure",
          needles=("application timeout caused pair closure", "gloo", "timed out waiting ")),
    cause("rendezvous", "port-in-use",
          r"[Aa]ddress already in use|EADDRINUSE|server socket has failed to listen|Port \d+ is already in use",
          needles=("already in use", "eaddrinuse", "server socket has failed to listen")),
    cause("rendezvous", "elastic-rendezvous",
          r"Rendezvous(?:Timeout|Connection|Closed|State|GracefulExit)?Error\b"
          r"|Error initializing torch\.distributed using"
          r"|rendezvous (?:has )?(?:timed out|closed)|connection to the C10d store has failed",
          needles=("store has failed", "error initializing torch.distributed using", "rendezvous")),
    cause("rendezvous", "gloo-mesh", r"connectFullMesh failed", "medium",
          needles=("connectfullmesh failed",)),
    cause("rendezvous", "store-connect",
          r"\d+/\d+ clients joined|client socket has (?:failed|timed out).{0,300}connect"
          r"|Timed out initializing process group"
          r"|cannot be retrieved \(gai error|[Tt]imed out after .{0,300} waiting for clients"
          r"|MASTER_ADDR.{0,300}not set"
          r"|[Tt]emporary failure in name resolution|Name or service not known",
          needles=(" waiting for clients", " clients joined", "cannot be retrieved (gai error",
                   "client socket has", "master_addr", "name or service not known",
                   "temporary failure in name resolution", "timed out initializing process group")),
    cause("nccl_init", "no-interface",
          r"no socket interface found|Unable to find (?:address|interface) for|ifa != nullptr"
          r"|[Uu]nable to resolve hostname to a \(local\)",
          needles=("ifa != nullptr", "no socket interface found", "unable to find address for",
                   "unable to find interface for", "unable to resolve hostname to a (local)")),
    cause("nccl_init", "duplicate-gpu", r"Duplicate GPU detected",
          needles=("duplicate gpu detected",),
          advice="Start one process per GPU, and let each choose its own device (LOCAL_RANK) before NCCL starts."),
    cause("nccl_init", "invalid-usage", r"ncclInvalidUsage|NCCL.{0,300}invalid usage", "medium",
          needles=("invalid usage", "ncclinvalidusage")),
    cause("nccl_init", "ib-call", r"Call to ibv_\w+ failed",
          needles=("call to ibv_",)),
    cause("nccl_init", "nccl-setup",
          r"NCCL WARN .{0,300}(?:Bootstrap|no (?:socket|network)|[Cc]ould not find|[Ff]ailed to (?:initialize|find)"
          r"|No NVSwitch)"
          r"|Failed to initialize any NET plugin|NCCL.{0,300}Failed to CUDA calloc",
          needles=("nccl warn", "failed to initialize any net plugin", "failed to cuda calloc")),
    entry(Tier.HINT, "rendezvous", "store-timeout", r"DistStoreError|[Ww]ait timeout after \d+ ?ms", "low",
          needles=("diststoreerror", "wait timeout after ")),
    entry(Tier.HINT, "network_fault", "socket-reset",
          r"NCCL WARN.{0,200}Connection reset by peer|(?:ProcessGroup(?:NCCL|Gloo)|gloo/transport).{0,300}"
          r"Connection reset by peer", "low",
          needles=("connection reset by peer",),
          advice="Look at the peer that the line names first: if its process lived on, check its network link."),
    entry(_M, "unknown", "nccl-abort",
          r"taking the entire process down|NCCL operations have failed or timed out"
          r"|[Ww]atchdog thread terminated with exception(?!.{0,80}CUDA)"
          r"|terminate called.{0,80}c10::Dist",
          needles=("taking the entire process down", "have failed or timed out", "thread terminated with exception",
                   "terminate called")),
    entry(_M, "unknown", "worker-restart",
          r"attempts? left; will restart worker group",
          needles=("will restart worker group",)),
    entry(_M, "unknown", "nccl-remote",
          r"remote process exited|ncclRemoteError|communicator was aborted|[Cc]onnection (?:closed"
          r"|reset) by (?:remote )?peer"
          r"|peer (?:process )?(?:closed|died|exited)|NCCL.{0,300}remote error|closed by remote",
          needles=("by peer", "by remote peer", "communicator was aborted", "ncclremoteerror", "peer closed",
                   "peer died", "peer exited", "peer process ", "closed by remote", "remote error",
                   "remote process exited")),
    entry(_M, "unknown", "store-peer",
          r"recvValue failed|sendBytes failed|failed to recv, got 0 bytes|store->\w+\(|Broken pipe|BrokenPipeError"
          r"|ConnectionResetError|DistNetworkError|ConnectionRefusedError|Connection refused",
          needles=("broken pipe", "brokenpipeerror", "connection refused", "connectionrefusederror",
                   "connectionreseterror", "distnetworkerror", "failed to recv, got ", "recvvalue failed",
                   "sendbytes failed", "store->")),
    entry(Tier.HINT, "nccl_init", "nccl-unhandled",
          r"NCCL (?:error|Error).{0,300}(?:unhandled|internal error|system error)|unhandled (?:system|cuda) error"
          r"|ncclInternalError"
          r"|ncclSystemError|ncclUnhandledCudaError", "medium",
          needles=("internal error", "ncclinternalerror", "ncclsystemerror", "system error", "unhandled")),
)
