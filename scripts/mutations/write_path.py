"""Writing from Spark and Python, from rows to what is published."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "a replacement that does not apply after those before it takes nobody with it",
        "sparklog/metadata/model/rewriting.py",
        "            replace_extents(draft, action)\n            planned.append(action)\n",
        "            replace_extents(ImageDraft(image), action)\n            planned.append(action)\n",
        "tests/metadata/test_replacing.py tests/maintenance/test_forgotten.py",
    ),
    Mutant(
        "client: a time before 1970 does not become now, nor 1970",
        "sparklog/client/rows.py",
        "    if oldest is None or oldest >= 0:\n",
        "    if oldest is None or oldest >= -1:\n",
        "tests/client/test_rows.py",
    ),
)
