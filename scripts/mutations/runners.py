"""Who runs maintenance: with whose consent, how often, and beside what."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "what nobody asked for is written as the root agrees",
        "sparklog/maintenance/maintain.py",
        "return step.run(round_) if step.is_agreed(round_.metadata.image) else step.withheld(round_)",
        "return step.run(round_)",
        "tests/maintenance/test_older_roots.py",
    ),
    Mutant(
        "nobody starts a round for what a root does not agree to",
        "sparklog/maintenance/maintain.py",
        "step.is_agreed(image) and step.is_due(image, now_ms, terms)",
        "step.is_due(image, now_ms, terms)",
        "tests/maintenance/test_older_roots.py",
    ),
    Mutant(
        "an append to many partitions is written as the root agrees",
        "sparklog/metadata/documents/document.py",
        "to_wire(actions) if most >= COLUMNS_VERSION else tuple(actions)",
        "to_wire(actions)",
        "tests/maintenance/test_older_roots.py",
    ),
    Mutant(
        "a request is posted as the root agrees",
        "sparklog/client/publish.py",
        "most = agreed_version(metadata.image.configs)",
        "most = 1000",
        "tests/metadata/test_requests_of_many.py",
    ),
    Mutant(
        "a root that says nothing agrees to what writers need",
        "sparklog/metadata/model/agreed_version.py",
        "else WRITERS_VERSION",
        "else 1000",
        "tests/maintenance/test_older_roots.py",
    ),
)
