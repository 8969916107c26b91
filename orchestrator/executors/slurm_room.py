"""How many jobs a cluster takes of us: what a file or the accounting says, or else what its refusals teach."""

from __future__ import annotations

import logging
from collections.abc import Callable

from depthrate.slurm.limits import count_submitted

log = logging.getLogger("depthrate")
FORGET_S = 600.0
"""A limit that was learnt may belong to a whole group, whose other jobs end: it is tried again after so long."""


class Room:
    """How many jobs may be submitted now."""

    def __init__(self, most: int | None, clock: Callable[[], float]):
        self._said, self._clock = most, clock
        self._learnt: int | None = None
        self._learnt_at = 0.0

    @property
    def most(self) -> int | None:
        """Jobs that may wait and run together, as far as that is known."""
        if self._learnt is not None and self._clock() - self._learnt_at > FORGET_S:
            self._learnt = None
        known = [each for each in (self._said, self._learnt) if each is not None]
        return min(known, default=None)

    def left(self) -> int | None:
        """Return how many jobs more there is room for; None where no limit is known.

        Raises:
            SlurmError: the controller does not answer.
        """
        return None if self.most is None else max(0, self.most - count_submitted())

    def learn(self) -> int:
        """Note that not one job more was taken, and return how many there are.

        Raises:
            SlurmError: the controller does not answer.
        """
        there = count_submitted()
        if there:
            self._learnt, self._learnt_at = there, self._clock()
        return there
