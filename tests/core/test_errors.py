"""One tree, one form of messages."""

import pytest

from photinus.core import errors
from photinus.core.errors import PhotinusError, reason_of, user_message


@pytest.mark.parametrize("name", [n for n in vars(errors) if errors.class_of(n)])
def test_every_error_is_of_the_tree_and_drawn_in_it(name):
    assert issubclass(getattr(errors, name), PhotinusError)
    assert name in errors.__doc__


@pytest.mark.parametrize("name", ["ValueError", "message", "annotations", ""])
def test_a_name_of_no_error_of_ours_has_no_class(name):
    assert errors.class_of(name) is None


def test_what_is_wrong_what_was_got_what_to_do():
    assert user_message("a is wrong", got=0, do="do b") == "a is wrong; got 0; do b"
    assert user_message("a is wrong", do="do b") == "a is wrong; do b"
    assert user_message("a is wrong") == "a is wrong"
    assert str(errors.UsageError("a", got="")) == "a; got "


@pytest.mark.parametrize("name", ["AccessControlException", r"FSNamesystem$Error"])
def test_what_a_namenode_answers_is_told_without_javas_trace(name):
    answer = r"Permission denied: user=me, inode=\"/data\":root:supergroup:drwx------"
    error = RuntimeError(rf'RPCError("org.apache.hadoop.{name}", "{answer}\n\tat a.b(C.java:1)")')
    expected = 'Permission denied: user=me, inode="/data":root:supergroup:drwx------'
    assert reason_of(error) == expected
    assert reason_of(RuntimeError(f'RPCError("a.b", "{answer}")')) == expected
