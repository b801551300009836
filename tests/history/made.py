"""Records that were made of others, exactly once: one of each, if the group's offset is above, and else none.

Declared by events of f = "make": somebody has tried to make `value` of the record at `offset` of `key`, for a
group. Judged at the end: by the last polls, and by where the group is then (a final fetch-committed).
"""

from tests.history.columns import History
from tests.history.verdict import Name, Verdict


def check_made(history: History, verdict: Verdict) -> None:
    """A record without its offset, an offset without its record, a record twice."""
    made: dict[tuple[str, str], dict[int, list[str]]] = {}
    ends: dict[tuple[str, str], int] = {}
    for event in history.others:
        where = event.group or "", event.key or ""
        if event.f == "make":
            assert isinstance(event.offset, int)
            made.setdefault(where, {}).setdefault(event.offset, []).extend(event.value)
        elif event.f == "fetch-committed" and event.final and event.type == "ok":
            ends[where] = event.offset if isinstance(event.offset, int) else 0
    if not made:
        return
    seen = {history.values.texts[one] for one in history.read.value[history.op_final[history.read.op]]}
    for where, end in ends.items():
        _check(where, made.get(where, {}), end, seen, verdict)


def _check(
    where: tuple[str, str], made: dict[int, list[str]], end: int, seen: set[str], verdict: Verdict
) -> None:
    for offset in sorted({*made, *range(end)}):
        found = [one for one in made.get(offset, []) if one in seen]
        text = f"{where[0]} of {where[1]}: at {end}, and of record {offset} there is {found}"
        if len(found) > 1:
            verdict.add(Name.DUPLICATE, text)
        elif found and offset >= end:
            verdict.add(Name.RECORD_WITHOUT_OFFSET, text)
        elif not found and offset < end:
            verdict.add(Name.OFFSET_WITHOUT_RECORD, text)
