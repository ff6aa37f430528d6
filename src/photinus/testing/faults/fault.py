"""One fault: its kind, its place and its moment."""

from __future__ import annotations

from dataclasses import dataclass

from photinus.core.errors import UsageError
from photinus.core.seeds import derive
from photinus.core.settings import Limit, at_least, between, one_of, validate, whole

COPY, CUT, FREEZE, KILL = "copy", "cut", "freeze", "kill"
NAN, NO_MEMORY, SLOW, SLOW_LINK = "nan", "no_memory", "slow", "slow_link"
BAD_ROW, FEW_ROWS, TAKE_SLOTS = "bad_row", "few_rows", "take_slots"
FILL_DISK, FLIP_BIT, KILL_DRIVER = "fill_disk", "flip_bit", "kill_driver"
OF_WORKERS = (COPY, CUT, FREEZE, KILL, NAN, NO_MEMORY, SLOW, SLOW_LINK)
OF_ROWS = (BAD_ROW, FEW_ROWS)
OF_DRIVERS = (FILL_DISK, FLIP_BIT, KILL_DRIVER)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What goes wrong, and when: in one slot, or with the driver."""

    kind: str
    slot: int | None = None
    """None for a fault of the driver, or of the cluster."""
    step: int | None = None
    """After so many steps under the lease; of `nan` the step itself; of the driver, after so many
    rounds."""
    at_seconds: float | None = None
    """Instead: so long after the lease was granted, whatever the worker does then; of the driver
    after the engine began; of rows and slots 0, as they are so from the beginning."""
    lease: int = 1
    """Of the seat: 2 is the first one after a loss."""
    seconds: float = 0.0
    """How long it lasts; of `kill`, when the simulator starts the worker again."""
    factor: float = 1.0
    """How many times as long a step takes."""
    until: str = ""
    """A file: steps take longer for as long as there is none of that name."""
    executor: bool = False
    """The Java process of the worker's executor has the fault; a simulated one has one worker."""
    host: bool = False
    """The network interface of the worker's host has the fault; a simulated one has one worker."""
    amount: float = 0.0
    """Which row is bad, how many rows are left or slots taken, how many bytes pass in a second."""
    LIMITS = {  # noqa: RUF012
        "kind": one_of(*OF_WORKERS, *OF_ROWS, *OF_DRIVERS, TAKE_SLOTS),
        "slot": Limit.optional(whole(0)),
        "step": Limit.optional(whole(1)),
        "at_seconds": Limit.optional(at_least(0)),
        "lease": whole(1),
        "seconds": at_least(0),
        "factor": at_least(1),
        "amount": at_least(0),
    }

    def __post_init__(self) -> None:
        if self.kind in (*OF_ROWS, TAKE_SLOTS) and not whole(0).holds(self.amount):
            raise UsageError(f"{self.kind} takes {whole(0).text}", got=repr(self.amount))
        validate(self)
        if (self.step is None) == (self.at_seconds is None):
            got = f"step={self.step}, at_seconds={self.at_seconds}"
            raise UsageError("a fault happens at a step, or at a time", got=got, do="name one")

    def diary_entry(self) -> dict[str, object]:
        """Returns its entry in a diary."""
        names = ("kind", "slot", "lease", "step", "at_seconds", "executor", "host")
        pairs = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in pairs if value is not None and value is not False}


@dataclass(frozen=True, slots=True)
class Selection:
    """On which messages it falls: a share of them by chance, or strictly each n-th."""

    share: float = 0.0
    each: int = 0
    """0 for none."""
    first: int = 0
    """Which of each `each`."""
    LIMITS = {"share": between(0, 1), "each": whole(0), "first": whole(0)}  # noqa: RUF012

    def __post_init__(self) -> None:
        validate(self)

    @property
    def is_some(self) -> bool:
        """True when it falls on any."""
        return self.share > 0 or self.each > 0

    def falls_on(self, number: int, what: str) -> bool:
        """Returns whether it falls on a message: on the same ones in every run."""
        if self.each:
            return number % self.each == self.first
        return self.share > 0 and derive(number, what) < self.share * (1 << 63)
