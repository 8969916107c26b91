"""Studies written to an Optuna storage, for other programs."""

from __future__ import annotations

from typing import Any

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.export.exporter import ExportedSweep, Exporter
from depthrate.orchestrator.search.proposals import ProposalState, SearchView
from depthrate.sweeps.errors import SweepError


def _export(sweep: ExportedSweep, place: str | None) -> str:
    if sweep.search is None:
        raise UsageError(f"sweep {sweep.name!r} has no search to copy to {place}; give a folder for TensorBoard")
    return "\n".join(f"wrote study {name!r} to {place}" for name in export_studies(sweep.search, str(place)))


def export_studies(view: SearchView, url: str) -> list[str]:
    """Write the studies with all that is known of them to an Optuna storage, and return their names.

    Raises:
        SweepError: the storage holds such a study already, or cannot be written.
    """
    import optuna

    from depthrate.orchestrator.search.samplers import frozen_trial

    names = []
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for state in view.states:
        study = state.study
        name = f"{view.checked.sweep.name} {study.label()}".strip()
        try:
            directions: list[Any] = list(study.search.direction)
            exported = optuna.create_study(study_name=name, storage=url, directions=directions)
        except optuna.exceptions.DuplicatedStudyError:
            raise SweepError(f"study {name!r} is in {url} already; give a storage that does not have it") from None
        except Exception as error:  # whatever a database driver raises
            raise SweepError(
                f"{url} cannot be written ({type(error).__name__}: {error}); as in sqlite:///search.db"
            ) from error
        exported.set_user_attr("sweep", view.checked.sweep.name)
        exported.set_user_attr("study_id", study.study_id)
        exported.set_user_attr("objective", list(study.search.objective))
        for proposal, told in zip(state.proposals, state.outcomes, strict=True):
            if told.state is not ProposalState.OPEN:
                ids = [trial.trial_id for trial in proposal.trials]
                exported.add_trial(frozen_trial(proposal.values, told, study.dimensions, ids))
        names.append(name)
    return names


OPTUNA = Exporter(
    name="optuna",
    doc="To the Optuna storage TO, the search alone. Default for a URL.",
    export=_export,
    takes=lambda place: "://" in place,
    library="Optuna",
    install="pip install 'depthrate[search]'",
)
