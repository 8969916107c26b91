"""The task `words`: checks, memory and time estimates, and the task object. Importable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.interface import Engine, Params
from depthrate.tasks.papers.words.metrics import FIGURES, MEASUREMENTS
from depthrate.tasks.papers.words.parameters import WordsParameters
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.training.engines.choice import select_engine_on
from depthrate.tasks.training.fused_task import FusedTask
from depthrate.tasks.training.memory import PROCESS_BYTES
from depthrate.tasks.training.parameters import check_training, measured_steps
from depthrate.tasks.training.recording import taken_steps

if TYPE_CHECKING:
    from depthrate.tasks.papers.words.training import WordsTraining

MULTIPLY_ADDS_PER_S, STEP_OVERHEAD_S = 7e10, 2e-4
"""Multiply-adds per second of one core in an eager step's matrix products, and the overhead per step (measured)."""
NATIVE_MULTIPLY_ADDS_PER_S, NATIVE_STEP_OVERHEAD_S = 8e10, 3e-5
"""The same for native steps, which skip the products that a word repeated at a position would repeat."""
FUSED_MULTIPLY_ADDS = 1e8
"""Maximum number of multiply-adds per step for fusing to pay on a CPU: above it the matrix products take all the time."""


class Words(FusedTask[WordsParameters]):
    """An embedding and a linear layer, trained on sentences drawn for each trial."""

    name = "words"
    version = 1
    doc = "Train an embedding and a linear layer on sentences made of concepts, and measure how words collapse to them."
    parameters = WordsParameters
    measurements = MEASUREMENTS
    figures = FIGURES

    def training(self, trials: Sequence[WordsParameters], source: DataSource) -> WordsTraining:
        from depthrate.tasks.papers.words.training import training

        return training(trials)

    def check(self, trial: WordsParameters) -> None:
        check_training(trial, trial.num_sentences)
        words, concepts = trial.vocabulary_size, trial.concepts
        if words % concepts:
            raise ParameterError(
                f"vocabulary_size is {words}, expected a multiple of {concepts}, the number of concepts."
            )
        most = concepts**trial.sentence_length
        if trial.sequences > most:
            raise ParameterError(
                f"sequences is {trial.sequences}, expected at most {most}: {concepts} concepts make {most} sequences of "
                f"{trial.sentence_length} words."
            )
        least = concepts if trial.layer_norm else concepts - 1
        if trial.width < least:
            raise ParameterError(
                f"width is {trial.width}, expected at least {least} for equiangular directions of {concepts} concepts."
            )
        for name, decay in (("weight_decay", trial.weight_decay), ("weight_decay_embedding", trial.embedding_decay)):
            if trial.lr * decay >= 1:
                raise ParameterError(
                    f"lr is {trial.lr} and {name} is {decay}, but their product must be below 1. Otherwise one step decays "
                    "the weights to zero."
                )

    def engine(self, params: Params, requested: Engine, device: str) -> Engine:
        return select_engine_on(device, requested)

    def max_pack_size(self, params: Params, device: str) -> int:
        if device == "cuda":
            return 64
        return int(max(1, min(16, FUSED_MULTIPLY_ADDS // _step_multiply_adds(self.read(params)))))

    def estimate_s(self, params: Params, engine: Engine = Engine.EAGER) -> float:
        trial = self.read(params)
        a_second, beside_s = (
            (NATIVE_MULTIPLY_ADDS_PER_S, NATIVE_STEP_OVERHEAD_S)
            if engine is Engine.NATIVE
            else (MULTIPLY_ADDS_PER_S, STEP_OVERHEAD_S)
        )
        return float(trial.num_steps * (beside_s + 3 * _step_multiply_adds(trial) / a_second))

    def memory_bytes(self, params: Params, num_trials: int, device: str) -> float:
        """Estimate the peak memory of a pack in bytes: the process on a CPU, torch's tensors on a GPU."""
        trial = self.read(params)
        number = 8 if trial.dtype == "float64" else 4
        length, classes, width = trial.sentence_length, trial.sequences, trial.width
        batch = trial.batch_size or trial.num_sentences
        weights = width * (trial.vocabulary_size + length * classes)
        step = batch * (3 * length * width + 3 * classes)
        sentences = classes * (trial.samples_per_sequence + trial.test_samples_per_sequence)
        data = sentences * (2 * 4 * length + 4 * 8)
        # one trial at a time: the table of logits per word, class and position, and float64 copies for the metrics
        table = number * length * classes * (trial.vocabulary_size + width) + 3 * 8 * length * classes * width
        at_once = num_trials + (device == "cpu")  # kernels use the memory of one more trial
        pack = at_once * number * (weights + step) + num_trials * data
        return float((0 if device == "cuda" else PROCESS_BYTES) + pack + table)

    def measured(self, params: Params, steps: int) -> tuple[list[int], list[int]]:
        trial = self.read(params)
        return taken_steps(measured_steps(trial, trial.num_steps), steps), [0, 1] if trial.layer_norm else [0]


def _step_multiply_adds(trial: WordsParameters) -> float:
    """Return the multiply-adds of the linear layer's forward product in one step. The backward pass takes twice as many."""
    batch = trial.batch_size or trial.num_sentences
    return float(batch * trial.sentence_length * trial.width * trial.sequences)


WORDS = Words()
