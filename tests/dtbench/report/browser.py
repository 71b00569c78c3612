"""A page in headless Chromium, spoken to over its debugging pipe: no driver and no further package."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


class Page:
    """One tab. `errors` are exceptions and console messages, `requests` the addresses that it asked for."""

    def __init__(self, reading: int, writing: int) -> None:
        self._in, self._out = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")
        self._last, self._rest = 0, b""
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its result; what the page says meanwhile is kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        plain = json.dumps(message | ({"sessionId": self._session} if self._session else {}))
        self._out.write(plain.encode() + b"\0")
        self._out.flush()
        while (found := self._next()).get("id") != self._last:
            self._keep(found)
        assert "error" not in found, found["error"]
        result: dict[str, Any] = found["result"]
        return result

    def open(self, address: str) -> None:
        """Load a page and wait for its load event."""
        self.call("Page.navigate", url=address)
        while (found := self._next()).get("method") != "Page.loadEventFired":
            self._keep(found)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in.fileno(), 1 << 20)
            assert more, "Chromium ended"
            self._rest += more
        plain, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(plain)
        return message

    def _keep(self, message: dict[str, Any]) -> None:
        method, said = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.errors.append(json.dumps(said))
        elif method == "Page.javascriptDialogOpening":
            self.errors.append(f"dialog: {said}")


@contextlib.contextmanager
def page(profile: Path) -> Iterator[Page]:
    """A tab of a new browser, whose files lie in `profile`."""
    assert CHROMIUM
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # The browser reads its descriptor 3 and writes to 4.
    command = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    words = [CHROMIUM, *OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    browser = subprocess.Popen(
        ["bash", "-c", command, "chromium", *words], pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_in, ours_out)
    finally:
        browser.terminate()
        browser.wait(30)
