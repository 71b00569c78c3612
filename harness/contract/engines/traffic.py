"""What an engine sends in one optimizer step, and what of it crosses the network between nodes."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["all_gather", "reduce_scatter", "all_reduce"]
Among = Literal["all", "node", "peers"]
"""All ranks; the ranks of one node; one rank of each node, as many groups at once as a node has ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """Collectives of one kind in one micro-step."""

    kind: Kind
    bytes: int
    """Bytes that one group gathers or reduces in all calls together: the whole message, not one rank's part."""
    calls: int
    among: Among = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """What a step's messages mean for the link of one node."""

    bytes: float
    """Bytes that leave the node; as many enter it."""
    hops: int
    """Network hops in sequence: how often a transfer waits for the one before it."""

    def seconds(self, bytes_per_s: float, latency_s: float) -> float:
        """Time on a link of this bandwidth in each direction that nothing else uses."""
        return self.bytes / bytes_per_s + self.hops * latency_s


def crossing(messages: tuple[Message, ...], nodes: int, ranks_per_node: int, backend: str) -> Crossing:
    """What crosses the link of one node per micro-step, with ring algorithms.

    A ring over n ranks moves (n - 1)/n of the message over each of its links, and so over the one between two nodes,
    in n - 1 hops; an all-reduce is a reduce-scatter and an all-gather. Sources: R. Thakur, R. Rabenseifner, W. Gropp,
    Optimization of Collective Communication Operations in MPICH (2005), section 4; P. Patarasuk, X. Yuan, Bandwidth
    Optimal All-reduce Algorithms (2009). torch's gloo backend reduces and scatters by an all-reduce.
    """
    total, hops = 0.0, 0
    for message in messages:
        if message.among == "node" or nodes == 1:
            continue
        size, groups = (nodes, ranks_per_node) if message.among == "peers" else (nodes * ranks_per_node, 1)
        twice = message.kind == "all_reduce" or (message.kind == "reduce_scatter" and backend == "gloo")
        rounds = 2 if twice else 1
        total += rounds * groups * message.bytes * (size - 1) / size
        hops += rounds * message.calls * (size - 1)
    return Crossing(bytes=total, hops=hops)
