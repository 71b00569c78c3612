"""Node 0's side of a run over several nodes: wait for the other nodes, start their ranks, keep their files."""

import json
import re
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.contract.errors import HarnessError
from harness.contract.files import write_atomically
from harness.contract.outcome import Diagnosis
from harness.contract.spec import RunSpec
from harness.supervisor.nodes.link import Link, Place, ranks_of, unpack
from harness.supervisor.processes import SCHEDULED, Signals
from harness.supervisor.progress import say

HELLO_S = 10.0
FATE_S = 10.0
"""Time for the ranks of this node to end by themselves after those of another node have failed."""
SETTLE_S = 60.0
"""Time for the other nodes to end their ranks and to send their logs."""
NAMES = re.compile(r"(?:flight-recorder/)?[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Nodes:
    """The nodes 1 and up of one run."""

    def __init__(self, spec: RunSpec, place: Place, variables: dict[str, str]) -> None:
        self.spec, self.place = spec, place
        self.facts: dict[int, dict[str, Any]] = {}
        """What each node says of its host."""
        self._scheduled = any(name in variables for name in SCHEDULED)
        self._links: dict[int, Link] = {}
        self._names: dict[int, str] = {}
        self._offsets_s: dict[int, float] = {}
        self._leaving: dict[int, str] = {}
        self._ended: dict[int, int] = {}
        self._failed_s: float | None = None
        self._settled: set[int] = set()

    def __enter__(self) -> "Nodes":
        try:
            self._server = socket.create_server(("", self.place.port))
        except OSError as error:
            raise HarnessError(
                f"node 0 cannot listen on port {self.place.port}: {error.strerror}; end the process that holds it, or "
                "give all nodes another one with --rendezvous HOST:PORT"
            ) from None
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        for link in self._links.values():
            link.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._greet, args=(Link(connection),), daemon=True).start()

    def _greet(self, link: Link) -> None:
        hello = next(iter(link.take(HELLO_S)), {})
        node = hello.get("node")
        if hello.get("spec_hash") != self.spec.hash():
            link.send(refused="node 0 runs another spec")
        elif not isinstance(node, int) or not 0 < node < self.spec.platform.nodes:
            link.send(refused=f"node {node} is none of 1 to {self.spec.platform.nodes - 1}")
        elif node in self._links:
            link.send(refused=f"a node {node} is here already")
        else:
            self._names[node] = str(hello.get("name") or "")
            self._offsets_s[node] = time.time() - float(hello.get("at_s") or time.time())
            self.facts[node] = dict(hello.get("host") or {})
            self._links[node] = link
            return
        link.close()

    def name(self, node: int) -> str:
        """A node in words, with its ranks."""
        ranks, name = ranks_of(self.spec, node), self._names.get(node)
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        return f"node {node} ({name}, {which})" if name else f"node {node} ({which})"

    def own_address(self) -> str:
        """This node's address as the others reach it."""
        return next(iter(self._links.values())).own_address

    def gather(self, signals: Signals, until_s: float) -> Diagnosis | None:
        """Wait for every node. If some do not come in time, return a diagnosis that names them."""
        started_s = time.monotonic()
        until_s = min(until_s, started_s + self.spec.protocol.startup_stall_s)
        say(f"  node 0 waits for {self.spec.platform.nodes - 1} more on port {self.place.port}")
        while missing := [n for n in range(1, self.spec.platform.nodes) if n not in self._links]:
            signals.wait(None, min(0.2, until_s - time.monotonic()))
            late = time.monotonic() >= until_s
            if signals.cancelled or late:
                who = ", ".join(self.name(node) for node in missing)
                return Diagnosis(
                    outcome="rendezvous" if late else signals.cancelled or "",
                    confidence="high",
                    culprit_rank=ranks_of(self.spec, missing[0])[0],
                    sentence=f"After {time.monotonic() - started_s:.0f} s these nodes had not come to node 0: {who}.",
                )
        return None

    def launch(self, spec: RunSpec, place: str, extra: dict[str, str], port: int, reference: str | None) -> None:
        """Have every node start its ranks of one try, named by the path of its folder."""
        self._ended, self._settled, self._failed_s = {}, set(), None
        for link in self._links.values():
            link.send(launch=place, spec=spec.to_json(), extra=extra, port=port, reference=reference)

    def look(self, folder: Path) -> None:
        """Keep what has come from the other nodes in the try's folder."""
        for node, link in list(self._links.items()):
            for message in link.take():
                self._note(node, message, folder)

    def _note(self, node: int, message: dict[str, Any], folder: Path) -> None:
        for name, text in message.get("beats", {}).items():
            if NAMES.fullmatch(name):
                write_atomically(folder / name, text)
        if "leaving" in message:
            self._leaving[node] = str(message["leaving"])
        if "ended" in message:
            self._ended[node] = int(message["ended"])
            if self._ended[node] != 0 and self._failed_s is None:
                self._failed_s = time.monotonic()
        if NAMES.fullmatch(name := str(message.get("file", ""))):
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            with open(path, "ab") as file:
                file.write(unpack(message["data"]))
        if "settled" in message:
            self._settled.add(node)
            self._correct_clocks(node, folder)

    def _correct_clocks(self, node: int, folder: Path) -> None:
        """Convert the times at which a node's ranks ended to this node's clock, because the earliest end is the
        cause."""
        for rank in ranks_of(self.spec, node):
            path = folder / f"exit-{rank}.json"
            with suppress(OSError, ValueError, TypeError, KeyError):
                plain = json.loads(path.read_text(encoding="utf-8"))
                plain["at_s"] += self._offsets_s[node]
                write_atomically(path, json.dumps(plain))

    def broken(self) -> bool:
        """Whether another node ended this try: it is lost or leaving, or its ranks failed FATE_S ago."""
        failed = self._failed_s is not None and time.monotonic() >= self._failed_s + FATE_S
        return failed or bool(self._leaving) or any(link.lost for link in self._links.values())

    def lost(self) -> Diagnosis | None:
        """The diagnosis that names a node which was lost or told to leave; None while all are there."""
        for node, link in sorted(self._links.items()):
            if node in self._leaving:
                outcome, how = self._leaving[node], "was told to end"
            elif link.lost:
                # Inside a pod or a Slurm job, a node that vanishes counts as preempted, as with signals.
                outcome, how = "preemption" if self._scheduled else "network_fault", link.lost
            else:
                continue
            name = self.name(node)
            return Diagnosis(
                outcome=outcome,
                confidence="high",
                culprit_rank=ranks_of(self.spec, node)[0],
                sentence=f"{name[0].upper()}{name[1:]} {how}; the other nodes ended with it.",
            )
        return None

    def never_met(self, silent_s: float, started: frozenset[int]) -> Diagnosis:
        """The diagnosis when all supervisors are connected but no rank reached its first step or said why. `started`:
        ranks that sent a heartbeat. The launchers start their ranks when all of them have reached node 0's launcher, so
        one node that cannot reach it keeps all others waiting.
        """
        absent = [n for n in range(1, self.spec.platform.nodes) if started.isdisjoint(ranks_of(self.spec, n))]
        who = ", ".join(self.name(node) for node in absent)
        what = f"a launcher did not reach node 0's, one of: {who}" if who else "the ranks did not reach each other"
        return Diagnosis(
            outcome="rendezvous",
            confidence="medium",
            culprit_rank=ranks_of(self.spec, absent[0])[0] if len(absent) == 1 else None,
            sentence=f"For {silent_s:.0f} s {what}, while the supervisors could talk on port {self.place.port}; "
            "open all ports from 12000 up between the nodes.",
        )

    def stop(self, reason: str | None) -> None:
        """End the try on every node. If this node's launcher ended by itself, the others get time to do so too."""
        for link in self._links.values():
            link.send(stop=reason, grace_s=0.0 if reason else FATE_S)

    def settle(self, folder: Path, reason: str | None) -> None:
        """End the try on every node, and wait a limited time for the files that the nodes send."""
        if reason is None:
            self.stop(None)
        until_s = time.monotonic() + SETTLE_S
        while time.monotonic() < until_s:
            self.look(folder)
            if all(node in self._settled or link.lost for node, link in self._links.items()):
                break
            time.sleep(0.05)
        self.look(folder)

    def dismiss(self, code: int) -> None:
        """Tell the other nodes that all is done; they exit with the same status."""
        for link in self._links.values():
            link.send(finished=code)
        for link in self._links.values():
            # Each node answers by closing its end. If this side closed first, the last message could be lost.
            end_s = time.monotonic() + HELLO_S
            while not link.lost and time.monotonic() < end_s:
                time.sleep(0.02)
