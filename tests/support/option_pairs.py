"""All pairs of a task's options: rows of options in which each pair of values occurs that `plan` accepts.

A greedy covering array whose rows `plan` accepts. A pair counts as refused when no change of the parameters that the refusal
names, and the next one, makes it acceptable.
"""

import itertools
import random
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Pair = tuple[tuple[str, int], tuple[str, int]]
"""Two options, each with its value's position in the option's list."""

MAX_REPAIRS = 400
"""Rows tried before a pair counts as refused."""


@dataclass
class OptionPairs:
    """The options of a task with the values to try, and what `plan` says of a row."""

    options: Mapping[str, Sequence[Any]]
    """Option -> its values, the first one where nothing else is asked for."""
    refusal: Callable[[Row], str | None]
    """Returns the message with which a row is refused; None where it is accepted."""
    seed: int = 0
    refused: dict[Pair, str] = field(default_factory=dict)
    """Pairs that no row can have -> the message."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._accepted: dict[tuple[int, ...], str | None] = {}
        self._names = list(self.options)

    @property
    def pairs(self) -> list[Pair]:
        """All pairs of values of two options."""
        return [
            ((one, i), (other, j))
            for one, other in itertools.combinations(self.options, 2)
            for i in range(len(self.options[one]))
            for j in range(len(self.options[other]))
        ]

    def covering_rows(self) -> list[Row]:
        """Return rows that have each pair which is not refused."""
        pairs = self.pairs
        self._random.shuffle(pairs)
        missing, rows = set(pairs), []
        for pair in pairs:
            if pair not in missing:
                continue
            row = self._with_pair(pair)
            if row is not None:
                row = self._filled(row, pair, missing)
                covered = self._pairs_in(row)
                missing -= covered
                rows.append(self.values(row))
                self.refused = {other: message for other, message in self.refused.items() if other not in covered}
            missing.discard(pair)
        return rows

    def values(self, row: Mapping[str, int]) -> Row:
        """Return a row's values for their positions."""
        return {name: self.options[name][position] for name, position in row.items()}

    def _message(self, row: Mapping[str, int]) -> str | None:
        key = tuple(row.values())
        if key not in self._accepted:
            self._accepted[key] = self.refusal(self.values(row))
        return self._accepted[key]

    def _with_pair(self, pair: Pair) -> dict[str, int] | None:
        """Return an accepted row with a pair and few other changes; None where none exists, and record why."""
        fixed = dict(pair)
        start = dict.fromkeys(self._names, 0) | fixed
        queue, seen, first = deque([start]), {tuple(start.values())}, None
        for _ in range(MAX_REPAIRS):
            if not queue:
                break
            row = queue.popleft()
            message = self._message(row)
            if message is None:
                return row
            first = first or message
            for other in self._repairs(row, message, fixed):
                if tuple(other.values()) not in seen:
                    seen.add(tuple(other.values()))
                    queue.append(other)
        self.refused[pair] = first or ""
        return None

    def _repairs(self, row: dict[str, int], message: str, fixed: Collection[str]) -> Iterator[dict[str, int]]:
        words = set(re.findall(r"\w+", message))
        for name in self._names:
            if name not in fixed and (name in words or str(self.options[name][row[name]]) in words):
                for position in range(len(self.options[name])):
                    if position != row[name]:
                        yield row | {name: position}

    def _filled(self, row: dict[str, int], pair: Pair, missing: Collection[Pair]) -> dict[str, int]:
        """Return the row with other options changed, each to the acceptable value that has most missing pairs with the rest."""
        names = [name for name in self._names if name not in dict(pair)]
        self._random.shuffle(names)
        for name in names:
            positions = list(range(len(self.options[name])))
            self._random.shuffle(positions)
            gains = [self._gain(row, name, position, missing) for position in range(len(positions))]
            positions.sort(key=lambda position, gains=gains: -gains[position])  # type: ignore[misc]
            for position in positions:
                if position == row[name] or self._message(row | {name: position}) is None:
                    row = row | {name: position}
                    break
        return row

    def _gain(self, row: Mapping[str, int], name: str, position: int, missing: Collection[Pair]) -> int:
        return sum(self._pair(name, position, other, at) in missing for other, at in row.items() if other != name)

    def _pairs_in(self, row: Mapping[str, int]) -> set[Pair]:
        return {self._pair(one, row[one], other, row[other]) for one, other in itertools.combinations(row, 2)}

    def _pair(self, one: str, i: int, other: str, j: int) -> Pair:
        if self._names.index(one) < self._names.index(other):
            return (one, i), (other, j)
        return (other, j), (one, i)
