"""Events of a launch, as log records. `orchestrator/launch/events.py` collects them."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from depthrate.orchestrator.console.tables import counted, listed

log = logging.getLogger("depthrate")
MAX_NODES_SHOWN = 5
GIVEN_UP = "given up"
"""Outcome that is listed again when a launch ends."""
EVENT_ATTRIBUTE = "depthrate_event"
"""Attribute of a log record that has the `LaunchEvent`."""


@dataclass(frozen=True)
class LaunchEvent:
    """An occurrence or a current state."""

    kind: str
    """Line without count and nodes. Similar lines are one kind."""
    noun: str = ""
    """Counted noun, like job or pack. Empty if nothing is counted."""
    count: int = 1
    where: str = ""
    """Node."""
    is_state: bool = False
    """True if `count` is the current number, not an increment."""
    outcome: str = ""
    """Action taken: retried, given up, .... Events of one kind share a line, even if their outcomes differ."""


def log_event(
    noun: str, kind: str, *, count: int = 1, where: str = "", is_state: bool = False, outcome: str = ""
) -> None:
    """Log an event of the current launch as "2 packs on n1 <outcome>: <kind>"."""
    event = LaunchEvent(kind, noun, count, where, is_state, outcome)
    log.info(
        "%s", format_line(event, Counter({outcome: count}), [where] if where else []), extra={EVENT_ATTRIBUTE: event}
    )


def format_line(event: LaunchEvent, counts: Counter[str], nodes: Sequence[str]) -> str:
    """Format one line about a kind of event: count, nodes, outcomes."""
    count = counts.total()
    if not event.noun:
        return f"{event.kind} ({count} times)" if count > 1 else event.kind
    where = f" on {listed(nodes, MAX_NODES_SHOWN)}" if nodes else ""
    if not event.outcome:
        return f"{counted(count, event.noun)}{where} {event.kind}"
    if len(counts) == 1:
        return f"{counted(count, event.noun)}{where} {event.outcome}: {event.kind}"
    (outcome, number), *others = counts.most_common()
    parts = [f"{counted(number, event.noun)} {outcome}", *(f"{number} {outcome}" for outcome, number in others)]
    return f"{', '.join(parts)}{where}: {event.kind}"
