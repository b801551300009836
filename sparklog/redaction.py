"""What users' values look like in messages: secrets do not show.

Invariants: whoever prints the value of an option, wherever it came from, prints `shown` of it, which takes
    time in proportion to its length. A value is hidden by its option's name, by what it says itself (a JAAS
    line, a PEM block), and where it is a URL with a password in it; when in doubt it is hidden.
Sources: spark.redaction.regex; the settings of type PASSWORD in Kafka's ConfigDefs.
"""

import re

HIDDEN = "***"
_MAX_SHOWN = 300
_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|token|credential|jaas|private|access[._-]?key|(^|[._-])key$|^(kafka\.)?(sasl|ssl)\.",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"(password|passphrase|secret|token|pwd)\s*=|-----BEGIN ", re.IGNORECASE)
_BEFORE_AUTHORITY = re.compile(r"[/\s]")
_NAME = re.compile(r"(?<![\w/])[^:]")


def may_hold_secret(name: str) -> bool:
    """Might the value of an option or setting of this name be a secret?"""
    return _SECRET_NAME.search(name) is not None


def shown(name: str, value: object) -> str:
    """The value of an option as a message may quote it."""
    text = str(value)
    if may_hold_secret(name) or _SECRET_VALUE.search(text):
        return HIDDEN
    text = without_user_info(text)
    if len(text) > _MAX_SHOWN:
        text = f"{text[:_MAX_SHOWN]}..."
    return repr(text)


def without_user_info(text: str) -> str:
    """The text with names and passwords taken out of the URLs in it: what stands before an '@', back to '//',
    or else from a name with a colon behind it on. Linear, whatever the text: it may be anybody's.
    """
    *parts, last = text.split("@")
    found = []
    for part in parts:
        start = _user_info(part)
        found.append(part if start is None else part[:start] + HIDDEN)
    return "@".join((*found, last))


def _user_info(part: str) -> int | None:
    """Where it begins in what stands before an '@'; None: there is none."""
    begin = max((found.end() for found in _BEFORE_AUTHORITY.finditer(part)), default=0)
    if part.endswith("//", 0, begin):
        return begin
    begin = max(begin, part.rfind(",", begin) + 1)
    colon = part.rfind(":", begin)
    found = _NAME.search(part, begin, colon) if colon >= 0 else None
    return None if found is None else found.start()
