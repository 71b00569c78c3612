"""What the cluster or the bucket can answer instead of a result."""


class RemoteError(Exception):
    """The cluster or the bucket did not do what was asked; the message says who, what and what to do."""


class Unavailable(RemoteError):
    """No usable answer (network, timeout, 5xx, 429): the state is unknown and asking again is right."""


class Refused(RemoteError):
    """A definite no (400, 403, 404, 422): asking again changes nothing until somebody acts."""


class Full(Unavailable):
    """A quota of the namespace is used up: asking again when other runs are done is right."""


class Expired(Refused):
    """Credentials are missing or expired (401): asking again is right once somebody has renewed them."""


class Denied(Refused):
    """Permission denied (403). Right after a grant it may only be late: IAM takes minutes to spread one."""


class Missing(Refused):
    """The object or the Job asked for does not exist (404)."""


class Damaged(RemoteError):
    """What the bucket holds does not match its record."""
