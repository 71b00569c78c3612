"""Remove hosts, addresses, users, paths, tokens and mail addresses from a log before it is shared.

Equal values get equal stand-ins, so that hosts and paths can still be told apart.
"""

import re
from collections.abc import Callable

from harness.contract.variables import SECRET_NAME, SECRET_VALUE

_SYSTEM = r"(?:usr|opt/conda|lib|lib64|bin|etc|proc|sys|dev|pytorch|third_party)(?:/|$)"
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("token", SECRET_VALUE),
    ("variable", re.compile(r"\b([A-Z][A-Z0-9_]+)=([\"']?)([^\s\"',;<]{4,})")),
    ("secret", re.compile(
        r"(?i)((?:token|secret|passw(?:or)?d|api[_-]?key|authorization|credential\w*|wandb_key)[\"']?\s*[:=]\s*"
        r"(?:bearer |basic )?[\"']?)([^\s\"',;]{4,})")),
    ("mail", re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")),
    ("url", re.compile(r"(?<=://)(?:[^\s/@:]+:[^\s/@]+@)?(?!(?:huggingface\.co|pytorch\.org|docs\.pytorch\.org|github\.com"
                       r"|storage\.googleapis\.com|pypi\.org)\b)[\w.-]+(?::\d+)?(?=[/\s\"')>\]]|$)")),
    ("bucket", re.compile(r"(?<=\bgs://|\bs3://)[\w.-]+")),
    ("address", re.compile(
        r"(?<![\w.])(?!127\.0\.0\.1|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)"
        r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}(?::?[0-9a-fA-F]{1,4})+(?![\w:])")),
    ("mac", re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.I)),
    ("home", re.compile(r"(?:/home|/Users|/root|/data/home|C:\\Users)[/\\][^\s\"':,;)\]]*")),
    ("path", re.compile(
        rf"(?<![\w.:/<])/(?!{_SYSTEM}|app/|home\d)(?:[\w.@%+~-]+/)+(?=[\w.@%+~-])")),
    ("host", re.compile(
        r"\b(?:ip-\d+-\d+-\d+-\d+[\w.-]*|gke-[\w-]+|[\w-]+(?:\.[\w-]+)*\.(?:internal|local|lan|cluster|compute\.amazonaws\.com"
        r"|edu|corp|intra|svc)(?:\.[\w-]+)*|(?<=host      : )[\w.-]+|(?<=node )[a-z][\w-]*\d[\w.-]*"
        r"|(?<=srun: error: )[\w.-]+(?=:)|(?<=ON )[\w.-]+(?= CANCELLED))")),
    ("user", re.compile(r"(?<=user=)[\w.-]+|(?<=user )'[\w.-]+'|(?<=USER=)[\w.-]+|(?<=LOGNAME=)[\w.-]+")),
)  # fmt: skip


_PUBLIC_TAIL = re.compile(r"/(?:site-packages|dist-packages|torch_extensions|lib/python[\d.]+)/.*")
"""The part of a path that names the library."""


class Redactor:
    """Replaces line by line; one Redactor per log keeps stand-ins stable."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, str]] = {kind: {} for kind, _ in _RULES}

    def line(self, text: str) -> str:
        """The line with everything private replaced; a path keeps its last part, the file's name."""
        for kind, pattern in _RULES:
            text = pattern.sub(self._stand_in(kind), text)
        return text

    def _stand_in(self, kind: str) -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            if kind == "variable":
                return f"{match[1]}={match[2]}<secret>" if SECRET_NAME.search(match[1]) else match[0]
            if kind == "secret":
                return f"{match[1]}<secret>"
            found = match[0]
            if kind in ("path", "home") and (kept := _PUBLIC_TAIL.search(found)):
                return f"/{self._name(kind, found[: kept.start()])}{kept[0]}"
            if kind == "path":
                return f"/{self._name(kind, found)}/"
            if kind == "home":
                folder, _, name = found.replace("\\", "/").rpartition("/")
                return f"/{self._name(kind, folder)}/{name}" if folder.count("/") > 1 else f"/{self._name(kind, found)}"
            return f"<{self._name(kind, found)}>"

        return replace

    def _name(self, kind: str, found: str) -> str:
        known = self._names[kind]
        return known.setdefault(found, f"{kind}{len(known) + 1}")


__all__ = ["Redactor"]
