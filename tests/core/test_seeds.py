"""One seed gives every purpose its own."""

from hypothesis import given
from hypothesis import strategies as st

from photinus.core.seeds import derive, generator

PURPOSE = st.lists(st.one_of(st.integers(0, 99), st.text("abc", min_size=1)), max_size=4)


@given(st.integers(0, 2**62), PURPOSE)
def test_a_seed_is_of_63_bits_and_repeats(seed, purpose):
    assert 0 <= derive(seed, *purpose) < 2**63
    assert derive(seed, *purpose) == derive(seed, *purpose)


def test_purposes_differ():
    seeds = {derive(s, p, n) for s in range(3) for p in ("order", "dropout") for n in range(50)}
    assert len(seeds) == 300


def test_a_generator_is_seeded_for_its_purpose():
    assert generator(1, "x").random() == generator(1, "x").random() != generator(1, "y").random()
