"""The supervisor of node 1 and up: run this node's ranks of each try, and exit when node 0 has delivered."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from harness.contract.errors import HarnessError, SpecError
from harness.contract.files import write_atomically
from harness.contract.heartbeat import read_heartbeat
from harness.contract.parity import REFERENCE
from harness.contract.spec import RunSpec, parse_spec
from harness.supervisor import folder, launch, processes
from harness.supervisor.environment import host_facts
from harness.supervisor.extensions import drop_abandoned_locks
from harness.supervisor.nodes.link import Link, Place, network_variables
from harness.supervisor.processes import Cancelled, Signals
from harness.supervisor.progress import say
from harness.supervisor.watch import dump_all

POLL_S = 0.5
RETRY_S = 0.5
CONNECT_S = 5.0


class NodeLost(HarnessError):
    """Node 0 is gone, so nobody writes a record: this node ends as well."""


def follow(spec: RunSpec, out: Path, place: Place, signals: Signals) -> int:
    """Serve node 0 until it has delivered; returns node 0's own exit status.

    Works in OUT/node-<N>, so that a shared file system can hold all nodes of a run; it is removed once node 0 has all
    of it. Raises NodeLost when node 0 is gone, Cancelled on a signal, SpecError when node 0 refuses this node.
    """
    work = out / f"node-{place.rank}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    say(f"node {place.rank}: joining node 0 at {place.host}:{place.port}")
    link = _connect(spec, place, signals)
    try:
        code = _Follower(place, work, link, signals).serve()
    finally:
        link.close()
    shutil.rmtree(work, ignore_errors=True)
    return code


def _connect(spec: RunSpec, place: Place, signals: Signals) -> Link:
    started_s = time.monotonic()
    while True:
        try:
            connection = socket.create_connection((place.host, place.port), timeout=CONNECT_S)
            break
        except OSError as error:
            waited_s = time.monotonic() - started_s
            if waited_s > spec.protocol.startup_stall_s:
                raise NodeLost(
                    f"node {place.rank}: node 0 did not answer at {place.host}:{place.port} for {waited_s:.0f} s "
                    f"({error}); check that it was started with the same spec and that the port is open"
                ) from None
            signals.wait(None, RETRY_S)
            if signals.cancelled:
                raise Cancelled(f"node {place.rank}: a signal came before node 0 answered") from None
    link = Link(connection)
    name = os.environ.get("HARNESS_POD_NAME") or os.environ.get("SLURMD_NODENAME")
    link.send(node=place.rank, name=name, spec_hash=spec.hash(), at_s=time.time(), host=host_facts())
    return link


class _Follower:
    def __init__(self, place: Place, work: Path, link: Link, signals: Signals) -> None:
        self._place, self._work, self._link, self._signals = place, work, link, signals
        self._sent: dict[str, str] = {}

    def serve(self) -> int:
        while True:
            # Read this before taking the messages, so that a last message is not lost with the connection.
            lost = self._link.lost
            for message in self._messages():
                if "launch" in message:
                    self._try(message)
                if "refused" in message:
                    raise SpecError(f"node {self._place.rank}: node 0 refuses it: {message['refused']}")
                if "finished" in message:
                    say(f"node {self._place.rank}: node 0 has delivered")
                    return int(message["finished"])
            self._check(lost)

    def _messages(self) -> list[dict[str, Any]]:
        found = self._link.take()
        if not found:
            self._signals.wait(None, 0.1)
        return found

    def _check(self, lost: str | None) -> None:
        if self._signals.cancelled:
            self._link.send(leaving=self._signals.cancelled)
            raise Cancelled(f"node {self._place.rank}: a signal came; node 0 writes the record")
        if lost:
            raise NodeLost(f"node {self._place.rank}: node 0 {lost}; the ranks of this node were ended with it")

    def _try(self, message: dict[str, Any]) -> None:
        spec = parse_spec(message["spec"])
        top = self._work / "run"
        shutil.rmtree(top, ignore_errors=True)
        place = top / "try"
        folder.empty(place)
        folder.write_spec(top / folder.SPEC, spec)
        if message["reference"] is not None:
            write_atomically(top / REFERENCE, message["reference"])
        say(f"  node {self._place.rank}: {message['launch']}")
        environment = launch.rank_environment(spec, place, message["extra"])
        environment = network_variables(self._link.own_address) | environment
        meeting = launch.Meeting(node=self._place.rank, host=self._place.host, port=int(message["port"]))
        command = launch.launcher_command(spec, top / folder.SPEC, place, environment, meeting)
        drop_abandoned_locks()
        launcher = processes.start(command, environment, place / "launcher.log")
        descriptor = os.pidfd_open(launcher.pid)
        try:
            self._attend(launcher, descriptor, spec, place)
        finally:
            os.close(descriptor)
            processes.sweep(launcher)
        self._hand_over(launcher.returncode, place)

    def _attend(self, launcher: "subprocess.Popen[bytes]", descriptor: int, spec: RunSpec, place: Path) -> None:
        """Report heartbeats until the launcher ends, node 0 stops the try or is gone, or a signal comes."""
        self._sent = {}
        while not self._signals.wait(descriptor, POLL_S):
            self._beat(place)
            if self._signals.cancelled:
                # Tell node 0 before the ranks die; otherwise it would take their death for the cause.
                self._link.send(leaving=self._signals.cancelled)
                return
            if self._link.lost:
                return
            for message in self._link.take():
                if "stop" in message:
                    self._stop(message, launcher, descriptor, spec, place)
                    return
        self._beat(place)

    def _stop(
        self, message: dict[str, Any], launcher: "subprocess.Popen[bytes]", descriptor: int, spec: RunSpec, place: Path
    ) -> None:
        if message["stop"] in ("stall", "deadline"):
            beats = {b.rank: b for path in place.glob("heartbeat-*.json") if (b := read_heartbeat(path))}
            dump_all(spec.platform.world_size, place, beats)
        elif message["grace_s"]:
            self._signals.wait(descriptor, float(message["grace_s"]))

    def _beat(self, place: Path) -> None:
        beats = {path.name: path.read_text(encoding="utf-8") for path in place.glob("heartbeat-*.json")}
        news = {name: text for name, text in beats.items() if self._sent.get(name) != text}
        if news:
            self._sent |= news
            self._link.send(beats=news)

    def _hand_over(self, code: int, place: Path) -> None:
        self._link.send(ended=code)
        folder.tidy_try(place)
        for path in sorted(place.rglob("*")):
            name = path.relative_to(place).as_posix()
            if not path.is_file() or name.startswith("heartbeat-"):
                continue
            self._link.send_file(name.replace("launcher", f"launcher-node-{self._place.rank}"), path)
        self._link.send(settled=True)
