"""One exception tree for everything the harness refuses, and how its messages show what was found.

HarnessError
 +-- SpecError      a spec or study says something that cannot be run
 +-- DeliveryError  a record exists but could not be brought to its destination
"""

import difflib
from typing import Any


class HarnessError(Exception):
    """Anything the harness refuses or cannot do; the message says found, expected and next step."""


class SpecError(HarnessError):
    """A spec, study or record does not hold its contract; the message names the dotted key."""


class DeliveryError(HarnessError):
    """A record was written but could not be uploaded or stored where it was asked for."""


def nearest(found: str, allowed: list[str] | tuple[str, ...]) -> str:
    """List what is allowed and suggest the name closest to `found`, as the tail of an error message."""
    text = str(found).lower()
    # Somebody who writes h100 means h100-80gb, although h200 is spelled more alike.
    begun = [name for name in allowed if len(text) > 2 and name.lower().startswith(text)]
    close = begun[:1] or difflib.get_close_matches(text, allowed, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"allowed: {', '.join(dict.fromkeys(allowed))}{hint}"


def show(value: Any) -> str:
    """A value as an error message shows it: on one line, cut to 80 characters."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of more digits than Python prints"
    return clip(text)


def clip(text: str) -> str:
    """A text, cut to 80 characters."""
    return text if len(text) <= 80 else text[:77] + "..."


def clip_path(path: object) -> str:
    """A path, cut in the middle to 240 characters: its end says the most."""
    text = str(path)
    return text if len(text) <= 240 else f"{text[:80]}...{text[-157:]}"
