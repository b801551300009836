"""A process that copies numbers exactly once, in transactions; run by test_transaction_kill.py.

    transaction_worker.py ROOT FLUSHES

Reads the numbers of topic `in` from the group's offsets on, a few at a time, appends each to `even` or `odd`
and to `all`, and commits the offsets, all in one transaction. FLUSHES is 1 if each step is staged by itself.
Ends at the
end of `in`. SPARKLOG_FAIL kills it somewhere.
"""

import sys

import pyarrow as pa
import pyarrow.compute as pc

import sparklog

AT_A_TIME = 5


def main(root: str, flushes: str) -> None:
    log = sparklog.open(root, create=False)
    txn = log.transaction("copy")
    while True:
        with txn:
            start = log.committed_offsets("copy").get(("in", 0), 0)
            table = log.read("in", 0, start, max_records=AT_A_TIME)
            if not table.num_rows:
                print(start, flush=True)
                return
            is_even = pc.equal(pc.bit_wise_and(table["value"].cast("string").cast("int64"), 1), 0)
            found = pa.table({"key": table["value"], "value": table["value"]})
            for topic, chosen in (("even", is_even), ("odd", pc.invert(is_even)), ("all", None)):
                txn.append(topic, found if chosen is None else found.filter(chosen))
                if flushes == "1":
                    txn.flush()
            txn.commit_offsets("copy", {("in", 0): start + table.num_rows})
            if flushes == "1":
                txn.flush()
        print(start + table.num_rows, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
