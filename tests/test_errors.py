"""The texts of errors are bounded, whatever they quote."""

import pickle  # noqa: TID251 - Spark carries errors this way

import pytest

from sparklog.errors import MAX_TEXT, InvalidRequestError, SparklogError


@pytest.mark.parametrize("length", [MAX_TEXT, MAX_TEXT + 1, 2_000_000])
def test_a_long_text_keeps_its_beginning_and_end(length: int) -> None:
    text = "begins " + "x" * (length - 12) + " ends"
    error = InvalidRequestError("INVALID_OPTION", text, fix=text)
    assert len(error.message) <= MAX_TEXT
    assert len(str(error)) <= 2 * MAX_TEXT + 100
    for said in (error.message, error.fix):
        assert said.startswith("begins ")
        assert said.endswith(" ends")
        assert ("omitted" in said) is (length > MAX_TEXT)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, SparklogError)
    assert str(again) == str(error)
