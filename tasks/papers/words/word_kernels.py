"""Native steps of `words`: one call takes many steps of a pack's trials, each trial separately.

Shapes: T trials, S steps, V words, D width, K classes, M numbers that the linear layer reads, L words of a sentence,
N sentences, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from depthrate.tasks.interface import SharedLibraries
from depthrate.tasks.native.build import load_library
from depthrate.tasks.native.library import Library, WordsCall
from depthrate.tasks.papers.words.parameters import WordsParameters
from depthrate.tasks.papers.words.sentences import Sentences
from depthrate.tasks.training.divergence import CHECK_STEPS, NEVER, Divergence
from depthrate.tasks.training.engines.native import NUMBERS
from depthrate.tasks.training.engines.native_call import BoundCall, Pace


def words_library(
    shape: WordsParameters, should_stop: Callable[[], bool], shared: SharedLibraries | None = None
) -> tuple[Library, float]:
    """Return the kernel library for trials of a shape, and the seconds spent building it or waiting for the build.

    Raises:
        EngineError, Interrupted: raised by `load_library`.
    """
    constants = {
        "NUMBER": NUMBERS[getattr(torch, shape.dtype)],
        "WIDTH": shape.width,
        "CLASSES": shape.sequences,
        "LENGTH": shape.sentence_length,
        "NORM": int(shape.layer_norm),
    }
    return load_library("words", constants, should_stop, shared, call=WordsCall)


class Batch(NamedTuple):
    """A batch of one trial."""

    sentences_B: Tensor
    begins_epoch: bool


class WordsState(NamedTuple):
    """State that steps change in place: matrices, their scales, and the epoch's running sums (`WordsTrainer`)."""

    words_TVD: Tensor
    linear_TKM: Tensor
    word_scale_T: Tensor
    linear_scale_T: Tensor
    epoch_T3: Tensor


class NativeWords:
    """Runner of a library's steps."""

    def __init__(self, library: Library, shape: WordsParameters, batch: int):
        fields = WordsCall(vocabulary=shape.vocabulary_size, ln_eps=shape.layer_norm_eps, look_every=CHECK_STEPS)
        self._call, self._batch = BoundCall(library, fields, batch=batch), batch
        self.pace = Pace()

    def __call__(
        self,
        first_step: int,
        state: WordsState,
        trials: Sequence[WordsParameters],
        sentences: Sequence[Sentences],
        rates: Sequence[Sequence[float]],
        batches: Sequence[Sequence[Batch]],
        divergence: Divergence | None,
    ) -> Tensor:
        """Take one step per entry of rates and batches [S][T].

        Returns:
            Losses [T] of the last step. `divergence` records the trials that diverge.
        """
        of_steps = [batch for batches_T in batches for batch in batches_T]
        assert all(len(batch.sentences_B) == self._batch for batch in of_steps)
        loss_T = state.words_TVD.new_empty(len(trials))
        never_T = torch.full((len(trials),), NEVER)
        self._call.set_fields(
            num_trials=len(trials),
            num_steps=len(rates),
            first_step=first_step,
            **state._asdict(),
            rate_ST=_doubles(rates),
            word_decay_T=_doubles([trial.embedding_decay for trial in trials]),
            linear_decay_T=_doubles([trial.weight_decay for trial in trials]),
            sentences_T=_addresses([of_trial.train_NL for of_trial in sentences]),
            order_ST=_addresses([batch.sentences_B for batch in of_steps]),
            begins_ST=torch.tensor([int(batch.begins_epoch) for batch in of_steps]),
            per_class_T=torch.tensor([trial.samples_per_sequence for trial in trials]),
            loss_T=loss_T,
            diverged_at_T=never_T if divergence is None else divergence.step_T,
        )
        self.pace.run(self._call, len(rates))
        return loss_T


def _doubles(numbers: Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _addresses(tensors: Sequence[Tensor]) -> Tensor:
    """Return the addresses of tensors, which must stay alive while the addresses are used."""
    assert all(tensor.is_contiguous() for tensor in tensors)
    return torch.tensor([tensor.data_ptr() for tensor in tensors])
