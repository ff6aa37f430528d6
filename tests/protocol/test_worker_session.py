"""What a worker's pushes say of its steps."""

import numpy as np

from photinus.core.clock import Clock
from photinus.protocol.messages import Seat
from photinus.protocol.worker_session import WorkerSession
from photinus.strategies.base import Message, Turn
from photinus.training.requests import Exchange, StepDone


def pushed(session, steps):
    """Returns what the header of a push of so many steps has."""
    message = Message("push", np.ones(1), since=Clock(steps, 8 * steps))
    return session.frame(Exchange(Turn("push"), message, 0), 0.0).header


def test_the_loss_of_a_push_is_that_of_all_its_steps_though_its_worker_served_between_two():
    session = WorkerSession(Seat(bytes(16)), {})
    session.stepped(StepDone(8, {"loss": 2.0}))
    served = pushed(session, 0)
    session.stepped(StepDone(8, {"loss": 4.0}))
    first = pushed(session, 2)
    session.stepped(StepDone(8, {"loss": 7.0}))
    assert first["metrics"] == {"loss": 3.0}
    assert [served["steps_since"], first["steps_since"]] == [1, 1]
    assert pushed(session, 1)["metrics"] == {"loss": 7.0}
