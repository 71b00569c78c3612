"""Environment variables that a spec may carry, and what a secret looks like: the one list for specs, logs and records.

Standard library only: the diagnosis redacts logs by it on a bare Python.
"""

import re
from collections.abc import Mapping

from harness.contract.errors import SpecError, show

SECRET_VALUES = {
    "Hugging Face": r"hf_[A-Za-z0-9]{10,}",
    "GitHub": r"gh[pousr]_[A-Za-z0-9]{20,}",
    "GitHub, fine-grained": r"github_pat_\w{20,}",
    "GitLab": r"glpat-[\w-]{10,}",
    "OpenAI": r"sk-[\w-]{16,}",
    "Slack": r"xox[abpr]-[\w-]{10,}",
    "AWS access key": r"AKIA[A-Z0-9]{12,}",
    "Google API key": r"AIza[\w-]{30,}",
    "Google OAuth": r"ya29\.[\w.-]{10,}",
    "JSON web token": r"eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]+)?",
    "40 hex digits, as of Weights & Biases": r"[0-9a-f]{40}(?![0-9a-f])",
    "private key": r"-----BEGIN [A-Z ]*KEY-----[\w+/=\\ -]*",
}
"""Who issues the secret -> pattern of its text."""
SECRET_VALUE = re.compile(rf"(?<!\w)(?:{'|'.join(SECRET_VALUES.values())})")
URL_PASSWORD = re.compile(r"://[^/\s@]+@")
"""User and password inside a URL. Logs need no rule for it: there the host behind it is redacted together with it."""
SECRET_NAME = re.compile(
    r"TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|(^|_)(API_?)?KEYS?($|_)|(^|_)PAT($|_)", re.I
)


def holds_secret(value: str) -> bool:
    """Whether a variable's value looks like a secret, or holds one."""
    return SECRET_VALUE.search(value) is not None or URL_PASSWORD.search(value) is not None


def check_variables(variables: Mapping[str, str]) -> None:
    """Refuse what no process can be given. Raises SpecError naming the variable."""
    for name, value in variables.items():
        if not name or "=" in name or not _passes(name):
            raise SpecError(f"environment: found the name {show(name)}, expected text without '=' and NUL characters")
        if not _passes(value):
            raise SpecError(f"environment.{name}: found a NUL character or half of a surrogate pair, expected text")


def refuse_secrets(variables: Mapping[str, str]) -> None:
    """Keep secrets out of a spec, which is stored and uploaded. Raises SpecError.

    Not part of decoding: a record stays readable when a pattern is added here.
    """
    for name, value in variables.items():
        if SECRET_NAME.search(name) or holds_secret(value):
            raise SpecError(
                f"environment.{name}: looks like a secret, and a spec is stored with its results; "
                "set it in the supervisor's own environment, which the ranks inherit"
            )


def _passes(text: str) -> bool:
    # JSON can spell half of a surrogate pair, but no encoding has bytes for it.
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
