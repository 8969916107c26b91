"""Which engines the trials of a sweep were trained by: between two of them a trial differs in its last digits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from depthrate.storage.attempts.records import records_of_attempts
from depthrate.storage.query.results import Results
from depthrate.tasks.interface import Engine


def engines_sentence(sweep: str, trial_ids: Iterable[str], results: Results) -> str | None:
    """Say that these of a sweep's trials were trained by several engines, as far as their attempts' records tell."""
    trials, wanted = results.snapshot.trials, set(trial_ids)
    pairs = zip(trials["trial_id"].to_pylist(), trials["attempt_id"].to_pylist(), strict=True)
    attempt_of = {trial_id: attempt_id for trial_id, attempt_id in pairs if trial_id in wanted}
    records = records_of_attempts(results.store, results.snapshot, set(attempt_of.values()))
    named = (records.get(attempt_id, {}).get("engine") for attempt_id in attempt_of.values())
    counted = Counter(Engine(name) for name in named if name in set(Engine))
    if len(counted) < 2:
        return None
    engines = ", ".join(f"{count} {engine}" for engine, count in counted.most_common())
    return (
        f"the trials of {sweep} were trained by {len(counted)} engines ({engines}), which agree but for rounding; which: "
        'depthrate query "select engine, trial_ids from attempts"; one for all: depthrate run --engine'
    )
