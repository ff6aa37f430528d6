"""Names of the user's own code, and what is said of wrong ones."""

import math

import pytest

from photinus.core.errors import UsageError
from photinus.core.factories import imported


def test_a_name_becomes_the_object_that_it_names():
    assert imported("math:sqrt", "loss") is math.sqrt


def test_a_file_that_fails_while_it_is_imported_is_told_of(tmp_path, monkeypatch):
    (tmp_path / "breaks.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"'breaks:net' cannot be imported; got ZeroDivision"):
        imported("breaks:net", "module")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("math", "a loss is named package.module:name; got 'math'"),
        (":sqrt", "a loss is named package.module:name"),
        ("math:", "a loss is named package.module:name"),
        ("nowhere_at_all:f", "the loss 'nowhere_at_all:f' cannot be imported; got ModuleNot"),
        ("math:sqroot", "math has no 'sqroot'; got 'math:sqroot'; check the spelling"),
        ("math:pi", "the loss 'math:pi' is not callable; got float"),
    ],
)
def test_what_is_no_name_of_a_callable_is_one_clear_sentence(path, said):
    with pytest.raises(UsageError) as raised:
        imported(path, "loss")
    assert str(raised.value).startswith(said)
