"""Texts that UTF-8 cannot write.

Python's strings may have halves of surrogate pairs: bytes of a command line that are not UTF-8 become such,
so do escapes of JSON. No record and no document can hold them: names are looked at before they are written.

Concurrency: pure.
"""


def utf8_size(text: str) -> int | None:
    """In bytes; None: UTF-8 cannot write it."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def why_not_utf8(text: str) -> str | None:
    """What is wrong with a text that UTF-8 cannot write, printable; None: nothing."""
    if utf8_size(text) is not None:
        return None
    return f"{text[:100]!a}, which has half of a surrogate pair, so that UTF-8 cannot write it"
