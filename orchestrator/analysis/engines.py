"""Engines that trained the trials of a sweep. Results of different engines differ in the last digits."""

from collections import Counter
from collections.abc import Iterable

from depthrate.storage.attempts.records import records_of_attempts
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.store import Store
from depthrate.tasks.interface import Engine


def engines_sentence(sweep: str, trial_ids: Iterable[str], store: Store, snapshot: Snapshot) -> str | None:
    """Describe the engines of a sweep's trials if the attempt records name several engines, and otherwise return None."""
    trials, wanted_ids = snapshot.trials, set(trial_ids)
    pairs = zip(trials["trial_id"].to_pylist(), trials["attempt_id"].to_pylist(), strict=True)
    attempt_of = {trial_id: attempt_id for trial_id, attempt_id in pairs if trial_id in wanted_ids}
    records = records_of_attempts(store, snapshot, set(attempt_of.values()))
    names = (records.get(attempt_id, {}).get("engine") for attempt_id in attempt_of.values())
    counts = Counter(Engine(name) for name in names if name in set(Engine))
    if len(counts) < 2:
        return None
    engines = ", ".join(f"{count} {engine}" for engine, count in counts.most_common())
    return (
        f"the trials of {sweep} were trained by {len(counts)} engines ({engines}), which agree up to rounding. "
        'List them: depthrate query "select engine, trial_ids from attempts". Use one engine: depthrate run --engine'
    )
