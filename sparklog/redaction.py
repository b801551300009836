"""What users' values look like in messages: secrets do not show.

Invariants: whoever prints the value of an option, wherever it came from, prints `shown` of it. A value is
    hidden by its option's name, by what it says itself (a JAAS line, a PEM block), and where it is a URL
    with a password in it; when in doubt it is hidden.
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
_USER_INFO = re.compile(r"(?<=//)[^/@\s]*@|(?<![\w/])[^/@\s,:]+:[^/@\s,]*@")


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
    """The text with names and passwords taken out of the URLs in it."""
    return _USER_INFO.sub(f"{HIDDEN}@", text)
