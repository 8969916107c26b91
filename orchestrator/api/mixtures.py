"""Warnings that the trials of a sweep mix code versions or engines."""

from __future__ import annotations

from depthrate.orchestrator.analysis.engines import engines_sentence
from depthrate.orchestrator.launch.code_changes import mixed_code_message
from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.storage.query.results import Results
from depthrate.tasks.interface import Engine


def mixtures(checked: CheckedSweep, results: Results) -> tuple[str, ...]:
    """Return one warning per kind of mixture."""
    sentences = [mixed_code_message(checked, results.snapshot)]
    if checked.trials and checked.task.engine(checked.trials[0].params, Engine.EAGER, "cpu") is not None:
        trial_ids = [trial.trial_id for trial in checked.trials]
        sentences.append(engines_sentence(checked.sweep.name, trial_ids, results))
    return tuple(sentence for sentence in sentences if sentence is not None)
