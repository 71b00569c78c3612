"""What the cluster or the bucket can answer instead of a result."""


class RemoteError(Exception):
    """The cluster or the bucket did not do what was asked; the message says who, what and what to do."""


class Unavailable(RemoteError):
    """No usable answer (network, timeout, 5xx, 429): the state is unknown and asking again is right."""


class Refused(RemoteError):
    """A definite no (400, 401, 403, 404, 422): asking again changes nothing until somebody acts."""
