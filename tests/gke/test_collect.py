"""Collecting: checked, atomic, and never outside the attempt's folder."""

import hashlib
import json
import subprocess
import sys

import pytest
from google.api_core import exceptions as api
from google.auth.credentials import AnonymousCredentials
from msgspec import structs
from snakemake_executor_plugin_gke.bucket import Bucket
from snakemake_executor_plugin_gke.collect import collect
from snakemake_executor_plugin_gke.errors import Damaged, Missing, Refused, Unavailable

from harness.contract.files import part_of
from harness.contract.outcome import Diagnosis
from harness.contract.record import RECORD_VERSION, File, Record, read_record
from tests.gke.specs import make_spec

SPEC = make_spec()


class Shelf:
    """A bucket in memory; `broken` names fail as a bucket out of reach does."""

    def __init__(self, objects):
        self.objects, self.broken, self.fetched = objects, set(), []

    def read(self, name, limit_bytes):
        return self.objects[name]

    def fetch(self, name, path, size_bytes):
        if name in self.broken:
            raise Unavailable("bucket: 503")
        if name not in self.objects:
            raise Missing(f"{name}: 404")
        self.fetched.append(name)
        path.write_bytes(self.objects[name])

    def sizes(self, folder):
        start = f"{folder}/"
        return {n.removeprefix(start): len(c) for n, c in self.objects.items() if n.startswith(start)}


def make_record(files, **changes):
    listed = tuple(File(path=p, size_bytes=len(c), sha256=hashlib.sha256(c).hexdigest()) for p, c in files.items())
    record = Record(
        record_version=RECORD_VERSION, source=None, spec=SPEC, spec_hash=SPEC.hash(), outcome="ok",
        diagnosis=Diagnosis(outcome="ok", confidence="high"), started_at=None, ended_at=None, wall_s=1.0, tries=(),
        measured=None, resolved=None, environment=None, files=listed,
    )  # fmt: skip
    return structs.replace(record, **changes)


def shelf_of(files, base="at/", **changes):
    record = json.dumps(make_record(files, **changes).to_json()).encode()
    return Shelf({f"{base}{p}": c for p, c in files.items()} | {f"{base}record.json": record})


FILES = {"spec.json": b"{}", "try-1/rank-0.log": b"step 1\n"}


def test_everything_arrives_and_the_record_last(tmp_path):
    shelf = shelf_of(FILES)
    record = collect(shelf, "at", "record.json", tmp_path, SPEC)
    assert read_record(tmp_path / "record.json") == record
    assert {p: (tmp_path / p).read_bytes() for p in FILES} == FILES
    assert list(tmp_path.rglob("*.part")) == []


def test_a_broken_download_leaves_no_record(tmp_path):
    shelf = shelf_of(FILES)
    shelf.broken = {"at/try-1/rank-0.log"}
    with pytest.raises(Unavailable):
        collect(shelf, "at", "record.json", tmp_path, SPEC)
    assert not (tmp_path / "record.json").exists()
    shelf.broken = set()
    collect(shelf, "at", "record.json", tmp_path, SPEC)
    assert shelf.fetched == ["at/spec.json", "at/try-1/rank-0.log"], "what had arrived was not fetched again"


def test_a_file_unlike_its_checksum_is_refused(tmp_path):
    shelf = shelf_of(FILES)
    shelf.objects["at/try-1/rank-0.log"] = b"step 2\n"
    with pytest.raises(Damaged, match="record says"):
        collect(shelf, "at", "record.json", tmp_path, SPEC)
    assert not (tmp_path / "record.json").exists()
    assert not (tmp_path / "try-1/rank-0.log").exists()


def test_files_come_from_the_records_pod(tmp_path):
    shelf = shelf_of(FILES, "at/pods/3/", pod=3)
    shelf.objects["at/record.json"] = shelf.objects.pop("at/pods/3/record.json")
    shelf.objects |= {f"at/pods/2/{p}": b"another pod's" for p in FILES}
    collect(shelf, "at", "record.json", tmp_path, SPEC)
    assert {p: (tmp_path / p).read_bytes() for p in FILES} == FILES


def test_logs_of_a_node_left_alone_arrive(tmp_path):
    spec = make_spec(world_size=2, nodes=2)
    shelf = shelf_of(FILES, spec=spec, spec_hash=spec.hash())
    log = {"at/nodes/1/pod-b/run/try/rank-1.log": b"lost node 0\n"}
    # Whoever may write to the bucket chooses these names.
    shelf.objects |= log | {
        "at/nodes/../../escaped": b"",
        "at/nodes/1/": b"",
        "at/nodes/1/pod-b/run/try/rank-1.log/x": b"",
    }
    shelf.broken = set(log)
    with pytest.raises(Unavailable):
        collect(shelf, "at", "record.json", tmp_path / "a1", spec)
    assert not (tmp_path / "a1/record.json").exists(), "a record says that all the rest is there"
    shelf.broken = set()
    collect(shelf, "at", "record.json", tmp_path / "a1", spec)
    found = {p.relative_to(tmp_path / "a1").as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {*FILES, "record.json", "nodes/1/pod-b/run/try/rank-1.log"}
    shelf.fetched.clear()
    collect(shelf, "at", "record.json", tmp_path / "a1", spec)
    assert shelf.fetched == [], "what is there is not fetched again"


def test_an_unready_attempt_has_no_record(tmp_path):
    assert collect(shelf_of(FILES), "at", "record.json", tmp_path, SPEC, settle=lambda record: None) is None
    assert (tmp_path / "spec.json").exists()
    assert not (tmp_path / "record.json").exists()


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["../escaped"], "outside the attempt's folder"),
        (["/etc/escaped"], "outside the attempt's folder"),
        (["a/../../escaped"], "outside the attempt's folder"),
        ([""], "is not the name of a file"),
        (["a\nb"], "is not the name of a file"),
        (["x" * 300], "more than 215 bytes"),
        (["a", "a/b"], "a file and a folder at once"),
        (["a/b", "a"], "a file and a folder at once"),
        (["a", "./a"], "is there twice"),
        (["record.json"], "is there twice"),
    ],
)
def test_a_record_with_impossible_paths_is_refused(paths, words, tmp_path):
    with pytest.raises(Damaged, match=words):
        collect(shelf_of(dict.fromkeys(paths, b"x")), "at", "record.json", tmp_path / "attempt", SPEC)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_a_files_way_is_named(tmp_path):
    (tmp_path / "spec.json" / "sub").mkdir(parents=True)
    with pytest.raises(Damaged, match=r"spec.json: cannot be written below"):
        collect(shelf_of(FILES), "at", "record.json", tmp_path, SPEC)


def test_a_hash_unlike_its_spec_is_refused(tmp_path):
    shelf = shelf_of(FILES, spec=make_spec(repeat=2))
    with pytest.raises(Damaged, match="but the spec inside is"):
        collect(shelf, "at", "record.json", tmp_path, SPEC)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"record_version": 1}'])
def test_what_is_not_a_record_is_refused(raw, tmp_path):
    with pytest.raises(Damaged, match="not a record"):
        collect(Shelf({"at/record.json": raw}), "at", "record.json", tmp_path, SPEC)


def test_a_record_of_another_spec_is_refused(tmp_path):
    with pytest.raises(Damaged, match="found a record of spec"):
        collect(shelf_of(FILES), "at", "record.json", tmp_path, make_spec(repeat=2))


def test_a_preempted_pods_record_brings_its_files(tmp_path):
    shelf = shelf_of(FILES, "at/pods/2/")
    collect(shelf, "at", "pods/2/record.json", tmp_path, SPEC)
    assert (tmp_path / "try-1/rank-0.log").read_bytes() == b"step 1\n"


def test_a_killed_clients_leftovers_are_removed_first(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = part_of(tmp_path / "try-1/rank-0.log", gone.pid)
    left.parent.mkdir()
    left.touch()
    collect(shelf_of(FILES, "at/"), "at", "record.json", tmp_path, SPEC)
    assert list(tmp_path.rglob("*.part")) == []


def test_a_bucket_needs_no_default_project(monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    monkeypatch.setattr("google.auth.default", lambda **_: (AnonymousCredentials(), None))
    assert Bucket("gs://bench/prefix").url == "gs://bench/prefix"


class Object:
    """An object that gives as many bytes as it is asked for, and notes how many that were."""

    def __init__(self, size):
        self.size, self.given = size, 0

    def download_as_bytes(self, end, **_):
        self.given = min(self.size, end + 1)
        return b"0" * self.given


def test_an_oversized_record_is_never_held_whole(monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    bucket, thing = Bucket("gs://bench"), Object(200 * 2**20)
    monkeypatch.setattr(bucket, "_blob", lambda name: thing)
    with pytest.raises(Damaged, match="larger than the 1000 bytes"):
        bucket.read("record.json", 1000)
    assert thing.given == 1001


def test_missing_objects_and_missing_buckets_differ(monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    bucket = Bucket("gs://bench")

    def gone(*_, **__):
        raise api.NotFound("No such object")

    monkeypatch.setattr(bucket._client, "list_blobs", gone)
    monkeypatch.setattr(bucket, "_blob", gone)
    with pytest.raises(Refused, match="check --gke-bucket"):
        bucket.list("s", ("record.json",))
    with pytest.raises(Missing, match="listed or is in a record, but is gone now"):
        bucket.read("s/record.json", 10)
