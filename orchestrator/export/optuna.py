"""Export studies to an Optuna storage."""

from typing import Any

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.export.exporter import ExportedSweep, Exporter
from depthrate.orchestrator.search.search_view import ProposalState, SearchView
from depthrate.sweeps.errors import SweepError


def _export(sweep: ExportedSweep, place: str) -> str:
    if sweep.search is None:
        raise UsageError(f"sweep {sweep.name!r} has no search to write to {place}. For TensorBoard, give a folder.")
    return "\n".join(f"wrote study {name!r} to {place}" for name in export_studies(sweep.search, place))


def export_studies(view: SearchView, url: str) -> list[str]:
    """Write the studies and their proposals to an Optuna storage, and return the study names.

    Raises:
        SweepError: The storage already holds a study of that name, or cannot be written.
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
            raise SweepError(f"study {name!r} already exists in {url}. Give another storage URL.") from None
        except Exception as error:  # database drivers raise exceptions of any class
            raise SweepError(
                f"cannot write to {url} ({type(error).__name__}: {error}). Example: sqlite:///search.db"
            ) from error
        exported.set_user_attr("sweep", view.checked.sweep.name)
        exported.set_user_attr("study_id", study.study_id)
        exported.set_user_attr("objective", list(study.search.objective))
        for proposal, outcome in zip(state.proposals, state.outcomes, strict=True):
            if outcome.state is not ProposalState.OPEN:
                ids = [trial.trial_id for trial in proposal.trials]
                exported.add_trial(frozen_trial(proposal.values, outcome, study.dimensions, ids))
        names.append(name)
    return names


OPTUNA = Exporter(
    name="optuna",
    doc="Write the search to an Optuna storage. Default for a URL.",
    export=_export,
    takes=lambda place: "://" in place,
    library="Optuna",
    install="pip install 'depthrate[search]'",
)
