"""What NCCL, gloo, the store and the watchdog say: set-up failures, waits, and news of dead peers."""

from harness.diagnosis.signatures.signature import Tier, cause, entry

_W, _M = Tier.WATCHDOG, Tier.MESSENGER

# fmt: off
COMMUNICATION = (
    entry(_W, "collective_wedge", "nccl-watchdog",
          r"[Cc]aught collective operation timeout|Timeout at NCCL work:",
          needles=("caught collective operation timeout", "timeout at nccl work:")),
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
    cause("nccl_init", "duplicate-gpu",
          r"Duplicate GPU detected|ncclInvalidUsage|NCCL.{0,300}invalid usage",
          needles=("duplicate gpu detected", "invalid usage", "ncclinvalidusage")),
    cause("nccl_init", "nccl-setup",
          r"NCCL WARN .{0,300}(?:Bootstrap|no (?:socket|network)|[Cc]ould not find|[Ff]ailed to (?:initialize|find)"
          r"|No NVSwitch)"
          r"|Failed to initialize any NET plugin|NCCL.{0,300}Failed to CUDA calloc",
          needles=("nccl warn", "failed to initialize any net plugin", "failed to cuda calloc")),
    entry(Tier.HINT, "rendezvous", "store-timeout", r"DistStoreError|wait timeout after \d+ms", "low",
          needles=("diststoreerror", "wait timeout after ")),
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
