"""Events are plain values, to the journal and back."""

import json

import pytest

from photinus.core.errors import UsageError
from photinus.core.events import (
    RoundClosed,
    Warned,
    event_from_dict,
    event_to_dict,
)


def test_an_event_survives_json():
    event = RoundClosed(
        phase=1, version=2, slots=(0, 3), examples=64, progress=0.5, seconds=1.0, metrics={"l": 2.0}
    )
    assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event


def test_fields_of_a_later_version_are_left_out():
    assert event_from_dict({"kind": "Warned", "text": "x", "colour": "red"}) == Warned(text="x")


@pytest.mark.parametrize("values", [{}, {"kind": "Nothing"}, {"kind": "Event"}])
def test_an_unknown_kind_is_refused(values):
    with pytest.raises(UsageError, match="unknown kind of event"):
        event_from_dict(values)
