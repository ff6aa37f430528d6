"""A function of the user's own as processes of this machine."""

import sys
import types

import pytest

from photinus import RunFailedError, launch

pytestmark = pytest.mark.processes


def test_a_function_that_no_process_can_import_ends_the_run_soon(monkeypatch, capfd):
    """Its module is known to this process alone, as one that a notebook's magic has made."""
    module = types.ModuleType("made_here")
    exec("def train():\n    pass\n", module.__dict__)
    module.train.__module__ = "made_here"
    monkeypatch.setitem(sys.modules, "made_here", module)
    with pytest.raises(RunFailedError, match="must be able to import the function's module"):
        launch(module.train, workers=1, engine="local")
    assert "No module named 'made_here'" in capfd.readouterr().err
