"""What the cluster or the bucket can answer instead of a result."""


class RemoteError(Exception):
    """The cluster or the bucket did not do what was asked; the message says who, what and what to do."""


class Unavailable(RemoteError):
    """No usable answer (network, timeout, 5xx, 429): the state is unknown and asking again is right."""


class Refused(RemoteError):
    """A definite no (400, 401, 403, 404, 422): asking again changes nothing until somebody acts."""


class Full(Unavailable):
    """No room at present (a quota of the namespace): asking again when others are done is right."""


class Expired(Refused):
    """Credentials are missing or expired (401): asking again is right once somebody has renewed them."""
