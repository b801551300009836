"""A pytest plugin that starts the patch of one mutant before any test is collected."""

from scripts.mutants import MUTANTS
from scripts.mutants.mutant import Patch, number_from_environment

_number = number_from_environment()
if _number is not None and isinstance(_patch := MUTANTS[_number].change, Patch):
    _patch.start()
