"""Points in time, as the contract writes them."""

from datetime import datetime

from harness.contract.codec import show
from harness.contract.errors import SpecError


def check_time(text: str | None, key: str) -> None:
    """Refuse a time that cannot be set beside others. Raises SpecError naming the key."""
    try:
        known = text is None or datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        known = False
    if not known:
        raise SpecError(
            f"{key}: found {show(text)}, expected a time with its offset, for example 2026-01-01T00:00:00+00:00"
        )
