"""A metadata server that comes late, as on a fresh node: nobody listens, then it refuses, then it gives tokens.

python -m tests.cluster.lab.metadata PORT LATE_S
"""

import http.server
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.cluster.lab.process import free_port, start, stop


class Metadata:
    """One such server, as a process of its own."""

    def __init__(self, folder: Path, late_s: float) -> None:
        self.log, self.late_s = folder / "metadata.log", late_s
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start its clock; returns the monotonic time at which it begins to give tokens."""
        self._process = start([sys.executable, "-m", __name__, str(self._port), str(self.late_s)], self.log)
        return time.monotonic() + self.late_s

    def stop(self) -> None:
        """End it."""
        stop(self._process)

    def environment(self, storage: str, home: Path) -> dict[str, str]:
        """Variables with which Google's libraries ask this server for credentials, and send them to `storage`."""
        address = f"127.0.0.1:{self._port}"
        return {
            "STORAGE_EMULATOR_HOST": "",
            "API_ENDPOINT_OVERRIDE": storage,
            "GCE_METADATA_HOST": address,
            "GCE_METADATA_IP": address,
            "GOOGLE_APPLICATION_CREDENTIALS": "",
            "CLOUDSDK_CONFIG": str(home),
        }

    def answers(self) -> Counter[str]:
        """How often it has refused and answered so far."""
        return Counter(self.log.read_text().split())


class _Handler(http.server.BaseHTTPRequestHandler):
    open_at_s = 0.0

    def do_GET(self) -> None:
        late = time.monotonic() < self.open_at_s
        print("refused" if late else "answered", flush=True)
        text = "googleapis.com" if "universe" in self.path else "pod@lab"
        if "/token" in self.path:
            text = json.dumps({"access_token": "late", "expires_in": 3600, "token_type": "Bearer"})
        elif "recursive" in self.path:
            text = json.dumps({"email": "pod@lab", "scopes": [], "aliases": ["default"]})
        self.send_response(503 if late else 200)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/json" if text[0] == "{" else "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


def main() -> None:
    """Serve until killed."""
    port, late_s = int(sys.argv[1]), float(sys.argv[2])
    _Handler.open_at_s = time.monotonic() + late_s
    time.sleep(late_s / 3)
    http.server.ThreadingHTTPServer(("127.0.0.1", port), _Handler).serve_forever()


if __name__ == "__main__":
    main()
