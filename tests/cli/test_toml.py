"""The small TOML writer against the standard library's reader."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photinus.cli.toml import to_toml
from photinus.run.job import Job, read_job
from photinus.run.presets import PRESETS, preset
from photinus.strategies.recipes import RECIPES

PLAIN = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(blacklist_categories=("Cs",)))
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab .-\"'"), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text("ab .-\"'"), VALUES, max_size=5))
def test_what_is_written_is_read_back(values):
    assert tomllib.loads(to_toml(values)) == values


@pytest.mark.parametrize("name", PRESETS)
def test_a_job_that_is_printed_is_read_as_the_same_job(name, tmp_path):
    job = preset(name)
    file = tmp_path / "job.toml"
    file.write_text(to_toml(job.to_dict()))
    assert read_job(file) == job


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_goes_through_toml(recipe):
    job = Job(strategy=RECIPES[recipe].build())
    assert Job.from_dict(tomllib.loads(to_toml(job.to_dict()))) == job
