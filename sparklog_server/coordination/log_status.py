"""Where a state log is in its life.

Concurrency: none.
"""

import enum


class LogStatus(enum.Enum):
    """May anybody be answered from this partition?"""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"  # the log is damaged there, or says what nobody can go on with
    RELEASED = "released"  # what is on its way is still applied
    CLOSED = "closed"
