"""One tree, one form of messages."""

import pytest

from photinus.core import errors
from photinus.core.errors import PhotinusError, message


@pytest.mark.parametrize("name", [n for n in errors.__all__ if n[0].isupper()])
def test_every_error_is_of_the_tree_and_drawn_in_it(name):
    assert issubclass(getattr(errors, name), PhotinusError)
    assert name in errors.__doc__


def test_what_is_wrong_what_was_got_what_to_do():
    assert message("a is wrong", got=0, do="do b") == "a is wrong; got 0; do b"
    assert message("a is wrong", do="do b") == "a is wrong; do b"
    assert message("a is wrong") == "a is wrong"
    assert str(errors.UsageError("a", got="")) == "a; got "
