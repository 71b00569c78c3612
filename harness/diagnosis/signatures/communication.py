"""What NCCL, gloo, the store and the watchdog say: set-up failures, waits, and news of dead peers."""

from harness.diagnosis.signatures.signature import Tier, cause, entry

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
