"""A pytest plugin that starts the patch of one mutant before any test is collected."""

from scripts.mutants import MUTANTS
from scripts.mutants.mutant import Patch, number_from_environment


def pytest_configure() -> None:
    """Not sooner: other plugins may not be imported yet, and mind what is imported before them."""
    number = number_from_environment()
    if number is not None and isinstance(patch := MUTANTS[number].change, Patch):
        patch.start()
