"""Metadata documents: what comes out of one is what went in, or a clear error."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "a commit is read back before it is made",
        "sparklog/metadata/creating.py",
        "    data = _encoded(header, tuple(actions), agreed_version(newer.configs))\n",
        "    data = encode_commit(header, actions, most=agreed_version(newer.configs))\n",
        "tests/metadata/test_read_back.py",
    ),
    Mutant(
        "a commit that is read as something else is not made",
        "sparklog/metadata/creating.py",
        "    if found != actions:\n",
        "    if False:\n",
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
        "    except (pa.ArrowException, OSError) as error:\n",
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
