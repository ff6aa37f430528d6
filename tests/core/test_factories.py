"""Names of the user's own code, and what is said of wrong ones."""

import functools
import math
import re
import subprocess
import sys
from pathlib import Path  # noqa: F401 - a name in this module

import pytest

from photinus.core.errors import UsageError
from photinus.core.factories import code_names, import_named, resolve_user_code


def test_a_name_becomes_the_object_that_it_names():
    assert import_named("math:sqrt", "loss") is math.sqrt


def test_a_file_that_fails_while_it_is_imported_is_told_of(tmp_path, monkeypatch):
    (tmp_path / "breaks.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"'breaks:net' cannot be imported; got ZeroDivision"):
        import_named("breaks:net", "module")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("math", "a loss is named package.module:name; got 'math'"),
        (":sqrt", "a loss is named package.module:name"),
        ("math:", "a loss is named package.module:name"),
        ("nowhere_at_all:f", "the loss 'nowhere_at_all:f' cannot be imported; got ModuleNot"),
        ("math:sqroot", "math has no 'sqroot'; got 'math:sqroot'; did you mean 'math:sqrt'?"),
        ("math:pi", "the loss 'math:pi' is not callable; got float"),
    ],
)
def test_what_is_no_name_of_a_callable_is_one_clear_sentence(path, said):
    with pytest.raises(UsageError) as raised:
        import_named(path, "loss")
    assert str(raised.value).startswith(said)


def test_of_a_module_that_is_not_there_it_is_said_how_it_is_sent():
    with pytest.raises(
        UsageError,
        match=r"or send its file, by addPyFile \(on Spark Connect addArtifacts\) or --py-files$",
    ):
        import_named("nowhere_at_all:f", "module")


class Base:
    def __call__(self):
        return self


class Made(Base):
    pass


def own():
    return Base()


OWN = __name__
bound = functools.partial(own)
foreign = functools.partial(subprocess.getoutput, "true")
made = Made()
getoutput = subprocess.getoutput


@pytest.mark.parametrize("name", ["own", "bound", "Made", "made"])
def test_ones_own_function_a_subclass_and_an_instance_may_be_named(name):
    assert resolve_user_code(f"{OWN}:{name}", "module", Base) is globals()[name]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("subprocess:getoutput", "'subprocess:getoutput' of Python's library"),
        ("os.path:join", "of Python's library"),
        (f"{OWN}:getoutput", "getoutput' of Python's library"),
        (f"{OWN}:foreign", "foreign' of Python's library"),
        (f"{OWN}:Path", "is a class of another kind; got Path; name a subclass of Base"),
        ("numpy:save", "'numpy:save' of numpy"),
        ("torch.hub:load", "'torch.hub:load' of torch"),
        ("photinus.run.train:train", "of photinus"),
        ("photinus.cli.main:main", "of photinus"),
        ("pip:main", "of pip"),
        ("a/b:c", "is named package.module:name"),
        ("a:b.c", "is named package.module:name"),
    ],
)
def test_what_is_not_the_users_own_is_refused_and_not_called(path, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        resolve_user_code(path, "module", Base)


def test_nothing_of_pythons_library_is_even_imported():
    """`antigravity` opens a browser when it is imported."""
    assert "antigravity" not in sys.modules
    with pytest.raises(UsageError):
        resolve_user_code("antigravity:fly", "module")
    assert "antigravity" not in sys.modules


def test_functions_of_arrays_may_be_a_loss():
    assert (
        resolve_user_code("torch.nn.functional:smooth_l1_loss", "loss").__name__ == "smooth_l1_loss"
    )


def test_names_of_code_are_found_wherever_they_stand():
    plain = {
        "model": {"module": "mine:net", "arguments": {"made_by": ["other.place:f"]}},
        "strategy": '{"outer": {"function": "mine:descent"}}',
        "strategies": {"train": "mine:Way"},
        "reads": "photinus.models.images:centred",
        "path": "hdfs://host:8020/rows",
        "text": "not: a name",
        "numbers": [1, 2.5, None],
    }
    assert code_names(plain) == ["mine:Way", "mine:descent", "mine:net", "other.place:f"]


def test_every_name_that_may_be_called_is_found():
    """What `code_names` does not see, `resolve_user_code` takes no name of."""
    for path in ("a b:c", "a:b c", " a:b", "a:b ", "a..b:c", ".a:b", "a.:b", "a:b:c", "1a:b"):
        assert code_names([path]) == []
        with pytest.raises(UsageError, match=r"is named package\.module:name"):
            resolve_user_code(path, "module")
