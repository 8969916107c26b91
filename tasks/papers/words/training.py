"""Training of the task `words`: a pack's networks and metrics. Trials differ in their sentences, and so in the number of
steps per epoch. Shapes: T trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.tasks.interface import Engine, SharedLibraries
from depthrate.tasks.native.library import Library
from depthrate.tasks.papers.words.parameters import WordsParameters
from depthrate.tasks.papers.words.sentences import draw_sentences
from depthrate.tasks.papers.words.word_rows import kept_projection, layer_rows, prediction_of
from depthrate.tasks.papers.words.word_trainer import WordsEvaluation, WordsTrainer, words_library
from depthrate.tasks.parameters import OncePerObject
from depthrate.tasks.training.engines.choice import select_engine_by_hand
from depthrate.tasks.training.held_out import Rows
from depthrate.tasks.training.parameters import measured_steps
from depthrate.tasks.training.training import Row, Training

CURVES_PER_DECADE = 16


def training(trials: Sequence[WordsParameters]) -> WordsTraining:
    """Build the training of a pack of trials of one shape."""
    prediction = OncePerObject(prediction_of)

    def measure(trainer: WordsTrainer, positions: Sequence[int], step: int) -> list[Rows]:
        return [layer_rows(trainer, position, step, prediction(trainer.trials[position])) for position in positions]

    def extra_curves(index: int, row: Row, earlier: Sequence[Row]) -> dict[str, float | None]:
        predicted, best_before = prediction(trials[index]), [last["best_test_accuracy"] for last in earlier[-2:-1]]
        return {
            "best_test_accuracy": max([row["test_accuracy"], *best_before]),  # the last row belongs to the test split
            "predicted_loss": None if predicted is None else predicted.loss,
            "predicted_objective": None if predicted is None else predicted.objective,
        }

    measured = [measured_steps(trial, trial.num_steps) for trial in trials]
    return WordsTraining(
        trials=trials,
        num_steps=[trial.num_steps for trial in trials],
        measured_steps=measured,
        curve_steps=[{*steps} | curve_steps(max(steps)) for steps in measured],
        measure=measure,
        extra_curves=extra_curves,
    )


@dataclass(frozen=True, kw_only=True)
class WordsTraining(Training):
    """Training of embeddings and linear layers, with separate sentences per trial."""

    trials: Sequence[WordsParameters]

    def engine(self, requested: Engine, device: str) -> Engine:
        """Return the engine that runs the steps."""
        return select_engine_by_hand(requested, device)

    def native_library(
        self, should_stop: Callable[[], bool], shared: SharedLibraries | None = None
    ) -> tuple[Library, float]:
        """Return the kernel library of the steps and the seconds spent building it."""
        return words_library(self.trials[0], should_stop, shared)

    def begin(self, device: str = "cpu") -> WordsTrainer:
        """Create the trainer of all trials on a device, before the first step."""
        return WordsTrainer(self.trials, [draw_sentences(trial) for trial in self.trials], device)

    def evaluate(self, trainer: WordsTrainer, positions: Sequence[int]) -> WordsEvaluation:
        """Evaluate loss and accuracy of the trials at these positions."""
        return trainer.evaluate(positions)

    def test_split(self, device: str) -> TestSentences:
        """Return the recorder of the test sentences' rows."""
        return TestSentences()

    def intermediate_features(
        self, trainer: WordsTrainer, position: int, index: int, step: int
    ) -> dict[str, Any] | None:
        """Return the projection of words and blocks, at every measured step or at the last."""
        when = self.trials[index].features
        is_kept = when == "projections" or (when == "projection" and step == self.num_steps[index])
        return kept_projection(trainer, position, step) if is_kept else None


class TestSentences:
    """Curve rows of the test sentences, which are evaluated together with the training sentences."""

    __test__ = False

    def record(
        self, trainer: WordsTrainer, step: int, tables: Mapping[int, tuple[Rows, Rows]], measured: Sequence[int]
    ) -> None:
        """Append loss and accuracy of trials at a step. `tables` maps a trial's position to its (metrics, curves)."""
        for _, curves in tables.values():
            loss, accuracy = curves[-1]["test_loss"], curves[-1]["test_accuracy"]
            curves.append({"step": step, "split": "test", "loss": loss, "accuracy": accuracy})


def curve_steps(last: int) -> set[int]:
    """Return about sixteen steps per decade, with 0 and the last: dense enough to find the peak of a test accuracy."""
    exponents = range(int(CURVES_PER_DECADE * math.log10(last)) + 1) if last > 1 else range(1)
    return {0, last, *(round(10 ** (exponent / CURVES_PER_DECADE)) for exponent in exponents)}
