"""Publications of lives that ended: what others took of them hides no loss."""

import pytest

from photinus.core.clock import Steps
from photinus.strategies.recipes import gossip, publish
from photinus.testing import Faults

WAYS = {
    "publish": publish(every=Steps(3), exact_every=3),
    "gossip": gossip(every=Steps(3), exact_every=3),
    "gossip ring": gossip(every=Steps(3), exact_every=3, graph="ring"),
}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("at", [0.31, 0.52, 0.77])
def test_what_the_lost_had_published_hides_no_loss(field, name, at):
    """A life that ended tells nobody what it sent: what others took of it must not count."""
    faults = Faults().lose(0.1).double(0.2)
    for slot in (1, 2):
        faults = faults.cut(slot=slot, at_seconds=at, seconds=2.0)
        faults = faults.freeze(slot=slot, at_seconds=at, seconds=6.0, lease=2)
        faults = faults.kill(slot=slot, at_seconds=at, lease=3)
    played = field.play(WAYS[name], cluster={"faults": faults}, epochs=12).run(until=900)
    met = played.tape.of("PeersMet")
    assert len(met) > 10
    assert {e.lease for e in played.tape.of("WorkerJoined")} >= {1, 2, 3}
    assert [e for e in met if e.published != e.taken + e.missing] == []
    assert sum(e.missing for e in met) > 0
