"""One seed gives every purpose its own."""

from hypothesis import given
from hypothesis import strategies as st

from photinus.core.seeds import backoff, derive, generator, reordered

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


@given(st.integers(0, 10**6), st.integers(0, 99), st.integers(1, 64))
def test_pauses_grow_to_the_most_within_half_and_repeat(tries, who, most):
    pause, mean = backoff(tries, who, most), min(most, 2 ** min(tries, 16))
    assert 0.5 * mean <= pause <= 1.5 * mean
    assert backoff(tries, who, most) == pause


def test_nobody_keeps_in_step_with_another_or_with_its_own_tries():
    pauses = [backoff(tries, who) for tries in range(1, 20) for who in range(20)]
    assert len({round(p, 9) for p in pauses}) == len(pauses)


def test_each_try_has_an_order_of_its_own():
    orders = {tuple(reordered(range(5), tries)) for tries in range(40)}
    assert all(sorted(order) == list(range(5)) for order in orders)
    assert {order[0] for order in orders} == set(range(5))
    assert reordered((3, 1), 7) == reordered((1, 3), 7)
