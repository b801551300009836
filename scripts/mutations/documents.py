"""Metadata documents: what comes out of one is what went in, or a clear error."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "snapshots: a compressed batch is refused before it is unpacked",
        "sparklog/metadata/documents/snapshot_extents.py",
        'expected one that is not" if _is_compressed(data, first_batch) else None\n',
        'expected one that is not" if False else None\n',
        "tests/metadata/test_arrow_layout.py",
    ),
    Mutant(
        "snapshots: a compressed dictionary is refused before it is unpacked",
        "sparklog/metadata/documents/snapshot_extents.py",
        "    if dictionaries and _is_compressed(data, first_dictionary):\n",
        "    if False:\n",
        "tests/metadata/test_arrow_layout.py",
    ),
    Mutant(
        "snapshots: a dictionary is not joined as often as a file says",
        "sparklog/metadata/documents/snapshot_extents.py",
        "    if dictionaries > 1 or batches != 1:\n",
        "    if batches != 1:\n",
        "tests/metadata/test_arrow_layout.py",
    ),
    Mutant(
        "a commit is read back before it is made",
        "sparklog/metadata/documents/document.py",
        "        raise ValueError(str(error)) from error\n    if found",
        "        return data\n    if found",
        "tests/metadata/test_read_back.py",
    ),
    Mutant(
        "a commit that is read as something else is not made",
        "sparklog/metadata/documents/document.py",
        "    if found.actions != wire:\n",
        "    if False:\n",
        "tests/metadata/test_read_back.py",
    ),
    Mutant(
        "columns are read back before a commit is made",
        "sparklog/metadata/documents/extent_columns.py",
        "    if _read(_numbers_decoder, data) != numbers:\n",
        "    if False:\n",
        "tests/metadata/test_read_back.py",
    ),
    Mutant(
        "and so is a column of one number",
        "sparklog/metadata/documents/extent_columns.py",
        "    _read(_number_decoder, data)\n",
        "",
        "tests/metadata/test_read_back.py",
    ),
    Mutant(
        "a document that is nested deeply is corrupt",
        "sparklog/metadata/documents/document.py",
        "_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)\n",
        "_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError)\n",
        "tests/metadata/test_hostile_documents.py",
    ),
    Mutant(
        "whatever Arrow finds wrong with a snapshot, it is corrupt",
        "sparklog/metadata/documents/snapshot_extents.py",
        "    except (pa.ArrowException, OSError, ValueError) as error:\n",
        "    except (pa.ArrowInvalid, OSError) as error:\n",
        "tests/metadata/test_hostile_documents.py",
    ),
    Mutant(
        "a group that is added twice is there once",
        "sparklog/metadata/model/transactions.py",
        "    groups = dict.fromkeys((*known.groups, *action.groups))\n",
        "    groups = (*known.groups, *action.groups)\n",
        "tests/metadata/test_hostile_documents.py",
    ),
    Mutant(
        "bytes beyond an int64 are added up exactly",
        "sparklog/metadata/model/extent_list.py",
        "        return (int((sizes >> 32).sum()) << 32) + int((sizes & 0xFFFF_FFFF).sum())\n",
        "        return int(sizes.sum())\n",
        "tests/metadata/test_transaction_snapshots.py",
    ),
)
