"""Put first on PYTHONPATH: a machine without torch and without a network."""

import socket
import sys
from importlib.abc import MetaPathFinder

ABSENT = {"torch", "deepspeed", "transformers"}


class Absent(MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class Unplugged(socket.socket):
    def connect(self, address: object) -> None:  # type: ignore[override]
        if self.family != socket.AF_UNIX:
            raise OSError(101, "Network is unreachable")
        super().connect(address)  # type: ignore[arg-type]


sys.meta_path.insert(0, Absent())
socket.socket = Unplugged  # type: ignore[misc]
