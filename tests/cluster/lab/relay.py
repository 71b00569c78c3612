"""A server between a client and a real server that can be told to fail: of the bucket, or of the API server."""

import contextlib
import http.client
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PIECE_BYTES = 2**16
Fault = Callable[[str, str, bytes], str | None]
"""(method, path, body) -> None (pass on), a status such as "503" or "429 3600" (with Retry-After), "hang" or "cut"."""


class Proxy(ThreadingHTTPServer):
    """A server to which it is no news that a client was killed in the middle of a request."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Relay:
    """Passes requests on to a server, or does what `fault` says; whoever is to meet it uses `endpoint`."""

    def __init__(self, connect: Callable[[], http.client.HTTPConnection]) -> None:
        self.fault: Fault = lambda method, path, body: None
        self.requests: Counter[str] = Counter()
        self.latency_s = 0.0
        """Time that every request spends on its way."""
        self.body_bytes_per_s: float | None = None
        """Speed of each answer; None: as fast as it goes."""
        self.sending = 0
        """Answers on their way."""
        self._counting = threading.Lock()
        self._connect = connect
        self._proxy = Proxy(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._proxy.server_address[1]}"
        self.released = threading.Event()

    def start(self) -> None:
        """Begin to serve."""
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """End; requests that hang are let go."""
        self.released.set()
        self._proxy.shutdown()
        self._proxy.server_close()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count an answer while it is on its way."""
        with self._counting:
            self.sending += 1
        try:
            yield
        finally:
            with self._counting:
                self.sending -= 1

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: object) -> None:
                pass

            def forward(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                relay.requests[f"{self.command} {urlsplit(self.path).path}"] += 1
                time.sleep(relay.latency_s)
                match relay.fault(self.command, self.path, body):
                    case None:
                        self.answer(*relay.ask(self.command, self.path, body, dict(self.headers)))
                    case "hang":
                        relay.released.wait()
                        self.close_connection = True
                    case "cut":
                        self.answer(*relay.ask(self.command, self.path, body, dict(self.headers)), part=0.5)
                        self.close_connection = True
                    case fault:
                        status, _, retry_after_s = fault.partition(" ")
                        text = {
                            "message": f"injected {status}",
                            "error": {"code": int(status), "message": f"injected {status}", "errors": []},
                        }
                        headers = {"Content-Type": "application/json"}
                        if retry_after_s:
                            headers["Retry-After"] = retry_after_s
                        self.answer(int(status), headers, json.dumps(text).encode())

            def answer(self, status: int, headers: dict[str, str], body: bytes, part: float = 1.0) -> None:
                self.send_response(status)
                for key, value in headers.items():
                    if key.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                        self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                body = body[: int(len(body) * part)]
                with relay.counted():
                    if relay.body_bytes_per_s is None or len(body) < PIECE_BYTES:
                        self.wfile.write(body)
                        return
                    for at in range(0, len(body), PIECE_BYTES):
                        self.wfile.write(body[at : at + PIECE_BYTES])
                        time.sleep(PIECE_BYTES / relay.body_bytes_per_s)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = forward

        return Handler

    def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Pass one request on to the server."""
        connection = self._connect()
        try:
            connection.request(method, path, body, {k: v for k, v in headers.items() if k.lower() != "connection"})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()
