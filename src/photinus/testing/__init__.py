"""Checks for parts of your own, links without sockets, and faults by name.

`photinus` itself imports nothing of it.
"""

from photinus.testing.faults.plan import Faults
from photinus.testing.feeds import check_feed
from photinus.testing.links import check_link
from photinus.testing.memory_link import MemoryListener
from photinus.testing.models import check_model
from photinus.testing.strategies import check_strategy

__all__ = [
    "Faults",
    "MemoryListener",
    "check_feed",
    "check_link",
    "check_model",
    "check_strategy",
]
