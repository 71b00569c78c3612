"""One exception tree for everything the harness refuses.

HarnessError
 +-- SpecError      a spec or study says something that cannot be run
 +-- DeliveryError  a record exists but could not be brought to its destination
"""


class HarnessError(Exception):
    """Anything the harness refuses or cannot do; the message says found, expected and next step."""


class SpecError(HarnessError):
    """A spec, study or record does not hold its contract; the message names the dotted key."""


class DeliveryError(HarnessError):
    """A record was written but could not be uploaded or stored where it was asked for."""
