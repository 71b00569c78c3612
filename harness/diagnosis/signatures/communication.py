"""What NCCL, gloo, the store and the watchdog say: set-up failures, waits, and news of dead peers."""

from harness.diagnosis.signature import Tier, cause, entry

_W, _M = Tier.WATCHDOG, Tier.MESSENGER

# fmt: off
COMMUNICATION = (
    entry(_W, "collective_wedge", "nccl-watchdog", ("watchdog caught", "collective operation timeout", "collective timeout"),
          r"[Ww]atchdog caught collective operation timeout|caught collective operation timeout"),
    entry(_W, "collective_wedge", "heartbeat-monitor", ("heartbeat", "stuck"),
          r"HeartbeatMonitor.*stuck|watchdog (?:got stuck|hang)|[Ww]atchdog thread (?:is|got) stuck|heartbeat monitor timed out"),
    entry(_W, "collective_wedge", "desync", ("desync", "collectivefingerprint", "monitored_barrier", "monitoredbarrier", "detected mismatch"),
          r"Detected mismatch between collectives|[Dd]etected (?:a )?desync|monitored_?[bB]arrier.*(?:timeout|not|fail)"
          r"|[Rr]anks? \d.* failed to pass monitoredBarrier"),
    entry(_W, "collective_wedge", "gloo-timeout", ("timed out", "timeout"),
          r"(?:gloo/transport|gloo).*[Tt]imed? ?out (?:after )?waiting|Timed out waiting \d+ms for (?:send|recv)"
          r"|Application timeout caused pair closure"),
    cause("rendezvous", "port-in-use", ("address already in use", "eaddrinuse", "failed to listen", "port"),
          r"[Aa]ddress already in use|EADDRINUSE|server socket has failed to listen|Port \d+ is already in use"),
    cause("rendezvous", "elastic-rendezvous", "rendezvous",
          r"Rendezvous(?:Timeout|Connection|Closed|State|GracefulExit)?Error\b|Error initializing torch\.distributed using"
          r"|rendezvous (?:has )?(?:timed out|closed)|connection to the C10d store has failed"),
    cause("rendezvous", "store-connect",
          ("clients joined", "failed to connect to", "barrier on rank", "connecttimeout", "retrieved (gai", "name resolution",
           "name or service", "could not resolve", "waiting for clients"),
          r"\d+/\d+ clients joined|client socket has (?:failed|timed out).*connect|Timed out initializing process group"
          r"|cannot be retrieved \(gai error|[Tt]imed out after .* waiting for clients|MASTER_ADDR.*not set"
          r"|[Tt]emporary failure in name resolution|Name or service not known"),
    cause("nccl_init", "no-interface", ("socket interface", "find address for", "find interface", "ifa != nullptr", "resolve hostname"),
          r"no socket interface found|Unable to find (?:address|interface) for|ifa != nullptr|[Uu]nable to resolve hostname to a \(local\)"),
    cause("nccl_init", "duplicate-gpu", ("duplicate gpu", "invalid usage", "ncclinvalidusage"),
          r"Duplicate GPU detected|ncclInvalidUsage|NCCL.*invalid usage"),
    cause("nccl_init", "nccl-setup", ("nccl", "bootstrap"),
          r"NCCL WARN .*(?:Bootstrap|no (?:socket|network)|[Cc]ould not find|[Ff]ailed to (?:open|load|initialize|find)|No NVSwitch)"
          r"|Failed to initialize any NET plugin|NCCL.*Failed to CUDA calloc"),
    entry(_M, "unknown", "nccl-remote",
          ("remote process exited", "ncclremoteerror", "communicator was aborted", "peer", "remote error", "nccl communicator",
           "closed by remote"),
          r"remote process exited|ncclRemoteError|communicator was aborted|[Cc]onnection (?:closed|reset) by (?:remote )?peer"
          r"|peer (?:process )?(?:closed|died|exited)|NCCL.*remote error|closed by remote"),
    entry(_M, "unknown", "store-peer", ("recvvalue", "sendbytes", "recv, got", "store->", "tcpstore", "broken pipe", "brokenpipeerror",
                                        "connectionreseterror", "distnetworkerror", "connection refused"),
          r"recvValue failed|sendBytes failed|failed to recv, got 0 bytes|store->\w+\(|Broken pipe|BrokenPipeError"
          r"|ConnectionResetError|DistNetworkError|ConnectionRefusedError|Connection refused"),
    entry(Tier.HINT, "nccl_init", "nccl-unhandled", ("unhandled", "nccl error", "ncclsystemerror", "ncclinternalerror"),
          r"NCCL (?:error|Error).*(?:unhandled|internal error|system error)|unhandled (?:system|cuda) error|ncclInternalError"
          r"|ncclSystemError|ncclUnhandledCudaError", "medium"),
)
