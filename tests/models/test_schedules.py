import math

import pytest

from photinus.core.errors import UsageError
from photinus.core.settings import from_dict, to_dict
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule, check_rates, zero_rates

pytestmark = pytest.mark.numerics


def test_a_constant_never_changes():
    assert {Schedule.constant(0.3).at(p / 10) for p in range(11)} == {0.3}


def test_two_points_at_one_place_are_a_jump():
    rising = Schedule(((0.0, 0.5), (0.25, 0.5), (0.25, 0.9)))
    assert [rising.at(p) for p in (0.0, 0.2, 0.25, 0.3, 1.0)] == [0.5, 0.5, 0.9, 0.9, 0.9]


def test_a_rate_falls_over_the_last_third():
    falling = Schedule(((0.0, 0.1), (0.7, 0.1), (1.0, 0.0)))
    assert falling.at(0.69) == 0.1
    assert math.isclose(falling.at(0.85), 0.05)
    assert falling.at(1.0) == 0.0


def test_cosine_warms_up_straight_and_falls_by_half_a_cosine():
    cosine = Schedule.cosine(2.0, warm_up=0.2, floor=0.5)
    assert math.isclose(cosine.at(0.1), 1.1)
    assert math.isclose(cosine.at(0.2), 2.0)
    for p in (0.3, 0.6, 0.9):
        expected = 0.5 + 1.5 * (1 + math.cos(math.pi * (p - 0.2) / 0.8)) / 2
        assert math.isclose(cosine.at(p), expected)
    assert math.isclose(cosine.at(1.0), 0.5)


def test_the_first_step_of_a_warm_up_moves():
    assert math.isclose(Schedule.cosine(2.0, warm_up=0.2).at(0.0), 0.2)


def test_it_goes_through_plain_values_and_back():
    schedule = Schedule.cosine(1e-3, warm_up=0.1)
    assert from_dict(Schedule, to_dict(schedule)) == schedule


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((0.5, 1.0), (0.1, 1.0)),
        ((0.0, math.nan),),
        ((0, -1.0),),
        0.1,
        (0.1, 0.2),
        (("a", "b"),),
    ],
)
def test_points_out_of_order_or_no_points_at_all_are_refused(points):
    with pytest.raises(UsageError, match=r"points of Schedule.*constant\(0.1\)"):
        Schedule(points)


def test_an_unknown_way_to_fall_is_refused():
    with pytest.raises(UsageError, match="did you mean 'cosine'"):
        Schedule(((0, 1),), falls="cosin")


PLACES = [
    (Pretraining, "lr", {}),
    (Pretraining, "momentum", {}),
    (FineTuning, "lr", {}),
    (ModuleConfig, "lr", {"module": "torch.nn:Linear"}),
]


@pytest.mark.parametrize(("kind", "name", "others"), PLACES)
@pytest.mark.parametrize("value", [0.25, 1])
def test_a_number_stands_for_a_schedule_in_python_as_in_a_file(kind, name, others, value):
    made = kind(**others, **{name: value})
    assert getattr(made, name) == Schedule.constant(value)
    assert made == from_dict(kind, {**others, name: value}) == from_dict(kind, to_dict(made))


@pytest.mark.parametrize(("kind", "name", "others"), PLACES)
@pytest.mark.parametrize("value", [math.nan, True, "0.1", -0.1])
def test_what_is_neither_a_number_nor_a_schedule_is_refused(kind, name, others, value):
    wrong = f"^{name} of {kind.__name__} must be a number of at least 0, or a Sch"
    with pytest.raises(UsageError, match=wrong):
        kind(**others, **{name: value})


PLACES_OF_A_TRAINING = [0.0, 0.1, 0.3, 0.59, 0.6, 0.7, 0.75, 0.9, 1.0]


def test_the_usual_rate_stays_and_falls_in_the_last_fifth():
    usual = Schedule.usual(2.0)
    assert [usual.at(p) for p in (0.0, 0.5, 0.8)] == [2.0, 2.0, 2.0]
    assert math.isclose(usual.at(0.9), 1.0)
    assert usual.at(1.0) == 0.0
    assert all(usual.at(p) == usual.until(1.0).at(p) for p in PLACES_OF_A_TRAINING)


def test_workers_that_train_alone_from_the_start_have_a_cosine():
    alone, cosine = Schedule.usual(2.0).until(0.0), Schedule.cosine(2.0)
    assert [alone.at(p) for p in PLACES_OF_A_TRAINING] == [
        cosine.at(p) for p in PLACES_OF_A_TRAINING
    ]


@pytest.mark.parametrize("share", [0.15, 0.5, 0.75])
def test_where_workers_begin_to_train_alone_the_usual_rate_is_a_cosines(share):
    begun = Schedule.usual(2.0).until(share)
    assert begun.at(0.79 * share) == 2.0
    assert math.isclose(begun.at(share), Schedule.cosine(2.0).at(share))
    assert begun.at(1.0) == 0.0


@pytest.mark.parametrize("own", [Schedule.constant(0.1), Schedule.cosine(0.1)])
def test_a_schedule_of_ones_own_is_the_same_however_workers_agree(own):
    assert own.until(0.5) is own


def test_the_usual_rate_of_a_larger_batch_rises_first_and_then_is_usual():
    grown = Schedule.usual(0.1).scaled(4.0, warm_up=0.2)
    assert [round(grown.at(p), 3) for p in (0.0, 0.1, 0.2, 0.8, 0.9, 1.0)] == [
        *(0.1, 0.25, 0.4),
        *(0.4, 0.2, 0.0),
    ]
    late = Schedule(((0.0, 0.1), (1.5, 0.2)), "usual")  # the rise outlasts the training
    assert math.isclose(late.at(0.75), late.until(0.5).at(0.75), rel_tol=1e-9)
    low = grown.until(0.1)  # it ends before the rise does
    assert [round(low.at(p), 2) for p in (0.1, 0.2, 1.0)] == [0.25, 0.39, 0.0]
    assert from_dict(Schedule, to_dict(grown)) == grown


@pytest.mark.parametrize("config", [ModuleConfig, FineTuning, Pretraining])
def test_points_in_epochs_are_refused(config):
    """The rate would have stayed at nearly its first value."""
    module = {"module": "torch.nn:Linear"} if config is ModuleConfig else {}
    settings = config(**module, epochs=60.0, lr=Schedule(((0, 0.1), (10, 0.1), (30, 0.01))))
    with pytest.raises(UsageError, match=r"goes by progress: .*; got a point at 30; divide epochs"):
        check_rates(settings)


@pytest.mark.parametrize(
    ("config", "part"), [(0, {"pretraining": Pretraining}), (-1, {"fine_tuning": FineTuning})]
)
def test_points_in_epochs_are_refused_in_the_configs_of_a_dbn(config, part):
    late = Schedule(((0, 0.1), (30, 0.01)))
    configs = DBN(**{name: settings(lr=late) for name, settings in part.items()}).configs()
    with pytest.raises(UsageError, match=r"got a point at 30; divide epochs"):
        check_rates(configs[config])


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (ModuleConfig(module="torch.nn:Linear", lr=0), ["ModuleConfig"]),
        (ModuleConfig(module="torch.nn:Linear", lr=Schedule.usual(0.0)), ["ModuleConfig"]),
        (ModuleConfig(module="torch.nn:Linear", settings={"lr": 0.0}), ["ModuleConfig"]),
        (DBN(fine_tuning=FineTuning(lr=0.0)), ["FineTuning"]),
        (DBN(pretraining=Pretraining(lr=0.0)), ["Pretraining"]),
        (DBN(pretraining=Pretraining(lr=0.0, epochs=0)), []),
        (ModuleConfig(module="torch.nn:Linear", lr=Schedule(((0, 0.0), (1, 0.1)))), []),
        (ModuleConfig(module="torch.nn:Linear"), []),
        (DBN(pretraining=Pretraining(momentum=0.0)), []),
    ],
)
def test_a_rate_that_is_0_from_start_to_end_is_warned_of(config, named):
    texts = [f"lr of {name} is 0 from start to end" for name in named]
    assert [text.partition(";")[0] for text in zero_rates(config)] == texts
