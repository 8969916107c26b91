"""The synthetic store's numbers as users keep them today, and the same questions asked of them.

    python -m benchmarks.store_rivals write --rival csv --folder /some/folder --trials 1000
    python -m benchmarks.store_rivals group_by --rival csv --folder /some/folder --trials 1000

csv: pandas over one file a trial. tensorboard: its own writer and EventAccumulator, one folder a trial
(pip install tensorboard). mlflow: its SQLite store, log_batch and search_runs (pip install mlflow-skinny sqlalchemy
alembic). They keep the scalars of metrics and curves; singular values and Gram matrices only the store keeps.
"""

import argparse
import importlib
import importlib.util
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from benchmarks.store_measures import Clock
from benchmarks.store_synthetic import CURVE_STEPS, DEPTH, STEPS, pack_values, synthetic_packs, synthetic_sweep
from depthrate.sweeps.expand import expand
from depthrate.sweeps.trial import Trial

ARRAYS = ("singular_values", "class_gram")
QUESTIONS = ("group_by", "one_trial", "done")
PARAMETERS = ("width", "weight_decay", "seed")


@dataclass(frozen=True)
class TrialValues:
    """One trial's numbers: metrics by name over layers, curves by name over CURVE_STEPS."""

    trial: Trial
    metrics: dict[str, np.ndarray]
    curves: dict[str, np.ndarray]


def all_values(num_trials: int) -> Iterator[TrialValues]:
    """Yield what the synthetic store of this size holds, trial by trial."""
    sweep = synthetic_sweep(num_trials)
    for pack in synthetic_packs(sweep, expand(sweep)):
        metrics, curves = pack_values(pack)
        for index, trial in enumerate(pack.trials):
            scalars = {name: values[index] for name, values in metrics.items() if name not in ARRAYS}
            yield TrialValues(trial, scalars, {name: values[index] for name, values in curves.items()})


class Rival(Protocol):
    """A way to keep trials in a folder."""

    requires: tuple[str, ...]
    """Modules that must be there."""
    most_trials: int
    """Above this it would take more than minutes."""

    def write(self, folder: Path, num_trials: int) -> None:
        """Write all trials."""

    def group_by(self, folder: Path) -> dict[float, float]:
        """Return weight_decay -> mean of nc1 at the last layer."""

    def one_trial(self, folder: Path, trial_id: str) -> int:
        """Read one trial's measurements of all layers and return how many layers there are."""

    def done(self, folder: Path) -> set[str]:
        """Return the identities of the trials that are done."""


class Csv:
    """pandas over one CSV a trial: a row a layer, the parameters repeated beside it; curves in a file of their own."""

    requires: tuple[str, ...] = ()
    most_trials = 10_000

    def write(self, folder: Path, num_trials: int) -> None:
        """Write two files a trial."""
        for values in all_values(num_trials):
            trial = values.trial
            frame = pd.DataFrame({"layer": np.arange(DEPTH + 1), **values.metrics})
            for name in PARAMETERS:
                frame[name] = trial.params[name]
            pd.DataFrame({"step": CURVE_STEPS, **values.curves}).to_csv(
                _made(folder / "curves") / f"{trial.trial_id}.csv", index=False
            )
            frame.to_csv(_made(folder / "metrics") / f"{trial.trial_id}.csv", index=False)

    def group_by(self, folder: Path) -> dict[float, float]:
        """Read every file, then group, as the notebook does."""
        frame = pd.concat([pd.read_csv(path) for path in sorted((folder / "metrics").glob("*.csv"))])
        return _means(frame[frame["layer"] == DEPTH])

    def one_trial(self, folder: Path, trial_id: str) -> int:
        """Read the trial's one file."""
        return len(pd.read_csv(folder / "metrics" / f"{trial_id}.csv"))

    def done(self, folder: Path) -> set[str]:
        """Read the names alone; a torn file would count as done."""
        return {name.removesuffix(".csv") for name in os.listdir(folder / "metrics")}


class TensorBoard:
    """Event files, one folder a trial; parameters in a JSON beside, as its hparams plugin cannot be asked for rows."""

    requires: tuple[str, ...] = ("tensorboard",)
    most_trials = 1_000

    def write(self, folder: Path, num_trials: int) -> None:
        """Write a scalar for each metric and layer, and for each curve and step."""
        writers = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        protos = importlib.import_module("tensorboard.compat.proto.event_pb2")
        summaries = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        for values in all_values(num_trials):
            place = _made(folder / values.trial.trial_id)
            (place / "params.json").write_text(json.dumps(dict(values.trial.params)))
            writer = writers.EventFileWriter(str(place))
            for tag, step, value in _scalars(values):
                scalar = summaries.Summary.Value(tag=tag, simple_value=value)
                writer.add_event(protos.Event(step=step, wall_time=0.0, summary=summaries.Summary(value=[scalar])))
            writer.close()

    def group_by(self, folder: Path) -> dict[float, float]:
        """Read every trial's events whole: there is no other way in."""
        rows = []
        for place in sorted(folder.iterdir()):
            params = json.loads((place / "params.json").read_text())
            nc1 = self._events(place).Scalars(f"nc1/layer_{DEPTH}")[-1].value
            rows.append({"weight_decay": params["weight_decay"], "nc1": nc1})
        return _means(pd.DataFrame(rows))

    def one_trial(self, folder: Path, trial_id: str) -> int:
        """Read one trial's events."""
        events = self._events(folder / trial_id)
        tags = [tag for tag in events.Tags()["scalars"] if "/layer_" in tag]
        values = {tag: events.Scalars(tag)[-1].value for tag in tags}
        return len({tag.partition("/layer_")[2] for tag in values})

    def done(self, folder: Path) -> set[str]:
        """Read every trial's events for its last step: the folder is there as soon as a trial starts."""
        return {place.name for place in folder.iterdir() if self._events(place).Scalars("loss")[-1].step == STEPS}

    @staticmethod
    def _events(place: Path) -> Any:
        module = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
        events = module.EventAccumulator(str(place), size_guidance={"scalars": 0})
        events.Reload()
        return events


class Mlflow:
    """MLflow's tracking store in one SQLite file, a run a trial."""

    requires: tuple[str, ...] = ("mlflow", "sqlalchemy", "alembic")
    most_trials = 1_000

    def write(self, folder: Path, num_trials: int) -> None:
        """Write each trial in one log_batch."""
        mlflow, client = self._client(folder)
        experiment = client.create_experiment("synthetic")
        for values in all_values(num_trials):
            run_id = client.create_run(experiment, start_time=0, run_name=values.trial.trial_id).info.run_id
            metrics = [mlflow.entities.Metric(tag, value, 0, step) for tag, step, value in _scalars(values)]
            params = [mlflow.entities.Param(name, str(values.trial.params[name])) for name in PARAMETERS]
            client.log_batch(run_id, metrics=metrics, params=params)
            client.set_terminated(run_id)

    def group_by(self, folder: Path) -> dict[float, float]:
        """Search all runs into a frame, then group."""
        mlflow, _ = self._client(folder)
        frame = mlflow.search_runs(experiment_names=["synthetic"])
        columns = {"params.weight_decay": "weight_decay", f"metrics.nc1/layer_{DEPTH}": "nc1"}
        return _means(frame.rename(columns=columns).astype({"weight_decay": float}))

    def one_trial(self, folder: Path, trial_id: str) -> int:
        """Search the run by its name."""
        mlflow, _ = self._client(folder)
        frame = mlflow.search_runs(
            experiment_names=["synthetic"], filter_string=f"attributes.run_name = '{trial_id}'", max_results=1
        )
        return len({column.partition("/layer_")[2] for column in frame.columns if "/layer_" in column})

    def done(self, folder: Path) -> set[str]:
        """Search the finished runs."""
        mlflow, _ = self._client(folder)
        runs = mlflow.search_runs(
            experiment_names=["synthetic"], filter_string="attributes.status = 'FINISHED'", output_format="list"
        )
        return {run.info.run_name for run in runs}

    @staticmethod
    def _client(folder: Path) -> tuple[Any, Any]:
        mlflow = importlib.import_module("mlflow")
        mlflow.set_tracking_uri(f"sqlite:///{_made(folder)}/mlflow.db")
        return mlflow, mlflow.MlflowClient()


class Ours:
    """The store itself, opened anew for every question; its folder is a finished store."""

    requires: tuple[str, ...] = ()
    most_trials = 1_000_000

    def write(self, folder: Path, num_trials: int) -> None:
        """Refuse: `benchmarks.store_synthetic` writes it."""
        raise NotImplementedError

    def group_by(self, folder: Path) -> dict[float, float]:
        """Ask the view that a user asks."""
        from depthrate.orchestrator.analysis.open_results import open_results

        rows = open_results(str(folder)).sql("select weight_decay, avg(nc1) from results group by 1").fetchall()
        return dict(rows)

    def one_trial(self, folder: Path, trial_id: str) -> int:
        """Ask for one trial's metrics."""
        from depthrate.orchestrator.analysis.open_results import open_results

        query = f"select * from metrics where trial_id = '{trial_id}'"
        return len(open_results(str(folder)).sql(query).fetchall())

    def done(self, folder: Path) -> set[str]:
        """Read the commits, as a plan does."""
        from depthrate.storage.commits.snapshot import take_snapshot
        from depthrate.storage.files.store import Store

        return take_snapshot(Store(str(folder))).trial_ids()


RIVALS: dict[str, Rival] = {"csv": Csv(), "tensorboard": TensorBoard(), "mlflow": Mlflow()}
KEEPERS: dict[str, Rival] = {"ours": Ours(), **RIVALS}


def missing(rival: Rival) -> list[str]:
    """Return the modules that a rival needs and that are not here."""
    return [name for name in rival.requires if importlib.util.find_spec(name) is None]


def expected_means(num_trials: int) -> dict[float, float]:
    """Return the group-by's right answer, from the numbers before anybody wrote them."""
    rows = [
        {"weight_decay": values.trial.params["weight_decay"], "nc1": values.metrics["nc1"][-1]}
        for values in all_values(num_trials)
    ]
    return _means(pd.DataFrame(rows))


def ask(rival: Rival, question: str, folder: Path, num_trials: int) -> list[float]:
    """Ask twice and return both times: the second has the imports behind it. A wrong answer stops the benchmark."""
    trials = expand(synthetic_sweep(num_trials))
    expected = expected_means(num_trials) if question == "group_by" else {}
    times = []
    for _ in range(2):
        clock = Clock()
        if question == "group_by":
            means = rival.group_by(folder)
            times.append(clock.lap())
            assert means.keys() == expected.keys(), f"groups {sorted(means)}, not {sorted(expected)}"
            # event files keep float32
            assert np.allclose([means[key] for key in expected], list(expected.values()), rtol=1e-6)
        elif question == "one_trial":
            layers = rival.one_trial(folder, trials[-1].trial_id)
            times.append(clock.lap())
            assert layers == DEPTH + 1, f"{layers} layers"
        else:
            done = rival.done(folder)
            times.append(clock.lap())
            assert done == {trial.trial_id for trial in trials}
        if times[0] > 30:  # imports are nothing beside that
            break
    return times


def _scalars(values: TrialValues) -> Iterator[tuple[str, int, float]]:
    """Yield (tag, step, value) of what is defined."""
    for name, layers in values.metrics.items():
        yield from ((f"{name}/layer_{k}", STEPS, float(value)) for k, value in enumerate(layers) if np.isfinite(value))
    for name, curve in values.curves.items():
        yield from ((name, int(step), float(value)) for step, value in zip(CURVE_STEPS, curve, strict=True))


def _means(frame: pd.DataFrame) -> dict[float, float]:
    means = frame.groupby("weight_decay")["nc1"].mean()
    return {float(str(key)): float(value) for key, value in means.items()}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> None:
    """Write a rival's folder or ask it one question, and print the seconds as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("missing", "write", *QUESTIONS))
    parser.add_argument("--rival", choices=KEEPERS, required=True)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--trials", type=int)
    arguments = parser.parse_args()
    rival = KEEPERS[arguments.rival]
    if arguments.what == "missing":
        print(json.dumps(missing(rival)))
    elif arguments.what == "write":
        clock = Clock()
        rival.write(arguments.folder, arguments.trials)
        print(json.dumps([clock.lap()]))
    else:
        print(json.dumps(ask(rival, arguments.what, arguments.folder, arguments.trials)))


if __name__ == "__main__":
    main()
