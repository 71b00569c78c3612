"""Environment variables that a spec may carry: ones a process can be given, and no secrets."""

import re
from collections.abc import Mapping

from harness.contract.errors import SpecError, show

SECRET_NAME = re.compile(
    r"TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|(^|_)(API_?)?KEYS?($|_)|(^|_)PAT($|_)", re.I
)
SECRET_VALUE = re.compile(
    r"hf_\w{20,}|gh[pousr]_\w{20,}|github_pat_\w+|sk-[\w-]{16,}|AIza[\w-]{30,}|AKIA\w{12,}|ya29\.[\w.-]+"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}|glpat-[\w-]{16,}|xox[abp]-[\w-]+|-----BEGIN|://[^/\s@]+@"
)


def check_variables(variables: Mapping[str, str]) -> None:
    """Refuse what no process can be given. Raises SpecError naming the variable."""
    for name, value in variables.items():
        if not name or "=" in name or not _passes(name):
            raise SpecError(f"environment: found the name {show(name)}, expected text without '=' and NUL characters")
        if not _passes(value):
            raise SpecError(f"environment.{name}: found a NUL character, or half of a surrogate pair, expected text")


def refuse_secrets(variables: Mapping[str, str]) -> None:
    """Keep secrets out of a spec, which is stored and uploaded. Raises SpecError.

    Not part of decoding: a record stays readable when a pattern is added here.
    """
    for name, value in variables.items():
        if SECRET_NAME.search(name) or SECRET_VALUE.search(value):
            raise SpecError(
                f"environment.{name}: looks like a secret, and a spec is stored with its results; "
                "set it in the supervisor's own environment, which the ranks inherit"
            )


def _passes(text: str) -> bool:
    # Half of a surrogate pair, which JSON can spell, has no bytes.
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
