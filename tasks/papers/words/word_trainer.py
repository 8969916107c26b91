"""Fused training of networks of one embedding and one linear layer: T trials advance together, each as if it were alone.

The gradient of the two layers is written out. Words are gathered and their gradients scattered, so a step touches only the
rows of its words. Weight decay multiplies a whole matrix by 1 - lr lambda at each step. It is stored as one factor per
matrix (W = w_scale x the stored one), which is exact and costs nothing. The matrix product that computes the linear layer's
gradient also adds it. Products are batched over T and nothing is summed across T, as in the trainer of deep networks. On a
CPU, kernels take the same steps, many per call, trial by trial.

Shapes: T trials, V words, D = width, K classes, L words of a sentence, M = L D, B batch, N sentences.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from depthrate.tasks.interface import SharedLibraries
from depthrate.tasks.native.build import NUMBERS, load_library
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.native.library import Library, WordsCall
from depthrate.tasks.papers.words.parameters import WordsParameters
from depthrate.tasks.papers.words.sentences import Sentences
from depthrate.tasks.parameters import changed
from depthrate.tasks.training.engines.native_call import BoundCall, Pace
from depthrate.tasks.training.pack_state import CHECK_STEPS, NEVER, Divergence, random_stream
from depthrate.tasks.training.training_plan import learning_rate_factor

SMALLEST_SCALE = 2.0**-20
"""Scale below which the factor is multiplied into its matrix, long before values leave their range."""
STEP_RTOL = 1e-3
"""Relative tolerance of the first native step against the eager one: far above rounding, far below a fault."""
ROWS_AT_ONCE = 4096
_TENSORS = ("_words_TVD", "_linear_TKM", "_epoch_T3")
_LISTS = ("_word_scales", "_linear_scales", "_positions", "_orders")
"""State with one entry per trial, in tensors and lists."""
EVALUATED_PER_SEQUENCE = 10
"""Training sentences per sequence used for losses and accuracies. Evaluating 500 costs about 1,000 steps."""


_COLUMNS = ("loss", "objective", "accuracy", "test_loss", "test_accuracy", "epoch_loss", "epoch_accuracy")
"""Columns of an evaluation. Those of an epoch are means over its sentences so far, each with the parameters of its step, and
NaN before the first step."""


def words_library(
    shape: WordsParameters, should_stop: Callable[[], bool], shared: SharedLibraries | None = None
) -> tuple[Library, float]:
    """Return the kernel library for trials of a shape, and the seconds spent building it or waiting for the build.

    Raises:
        EngineError, Interrupted: See `load_library`.
    """
    constants = {
        "NUMBER": NUMBERS[shape.dtype],
        "WIDTH": shape.width,
        "CLASSES": shape.sequences,
        "LENGTH": shape.sentence_length,
        "NORM": int(shape.layer_norm),
    }
    return load_library("words", constants, should_stop, shared, bind=partial(Library, call=WordsCall))


class _NativeWords(BoundCall):
    """Steps of a kernel library."""

    def __init__(self, library: Library, shape: WordsParameters, batch: int):
        fields = WordsCall(vocabulary=shape.vocabulary_size, ln_eps=shape.layer_norm_eps, look_every=CHECK_STEPS)
        super().__init__(library, fields, batch=batch)
        self.pace = Pace()


class WordsTrainer:
    """Trainer of T networks, each on separate sentences. Removing trials from the pack does not affect the others."""

    def __init__(self, trials: Sequence[WordsParameters], sentences: Sequence[Sentences], device: str = "cpu"):
        self.trials, self.sentences, self.device = list(trials), list(sentences), torch.device(device)
        self.shape = trials[0]
        """Parameters that all trials of the pack share."""
        self._dtype = getattr(torch, self.shape.dtype)
        self._num_steps = [trial.num_steps for trial in trials]
        self.step_count = 0
        starts = [_initial(trial, self._dtype) for trial in trials]
        self._words_TVD = torch.stack([words for words, _ in starts]).to(self.device)
        self._linear_TKM = torch.stack([linear for _, linear in starts]).to(self.device)
        self._word_scales, self._linear_scales = [1.0] * len(starts), [1.0] * len(starts)
        self._generators = [random_stream(trial.seed, "data order") for trial in trials]
        self._positions = [0] * len(starts)
        self._orders: list[Tensor | None] = [None] * len(starts)
        self._shuffled: list[tuple[Tensor, Tensor] | None] = [None] * len(starts)
        self._epoch_T3 = torch.zeros(len(starts), 3, dtype=torch.float64, device=self.device)
        """Running sums of each trial's epoch: losses, correctly classified sentences, sentences."""
        self._native: _NativeWords | None = None
        self._prepare()

    @property
    def num_trials(self) -> int:
        """Trials still training."""
        return len(self.trials)

    def embedding(self, trial: int) -> Tensor:
        """Return the embedding of a trial, [V, D]."""
        return self._words_TVD[trial] * self._word_scales[trial]

    def word_features(self, trial: int) -> Tensor:
        """Return the words of a trial as the linear layer reads them, [V, D]."""
        words_VD = self.embedding(trial)
        if not self.shape.layer_norm:
            return words_VD
        return F.layer_norm(words_VD, words_VD.shape[-1:], eps=self.shape.layer_norm_eps)

    def linear(self, trial: int) -> Tensor:
        """Return the linear layer of a trial as its blocks, [K, L, D]."""
        blocks = (self.shape.sequences, self.shape.sentence_length, self.shape.width)
        return (self._linear_TKM[trial] * self._linear_scales[trial]).view(blocks)

    def lr_at(self, step: int) -> list[float]:
        """Return the learning rate of each trial at a step."""
        schedule = self.shape.schedule
        return [
            trial.lr * learning_rate_factor(schedule, step, last)
            for trial, last in zip(self.trials, self._num_steps, strict=True)
        ]

    def use_native(self, library: Library) -> None:
        """Switch to native steps.

        Raises:
            EngineError: A native step of the first trial differs from the eager one by more than rounding. The check uses
                weights at which every term matters.
        """
        trial = changed(self.trials[0], init_scale=1.0)
        eager, other = (WordsTrainer([trial], self.sentences[:1]) for _ in range(2))
        before = eager.embedding(0), eager.linear(0)
        other._native = _NativeWords(library, trial, other._batch_size(0))
        eager.step(), other.step()
        for old, exact, found in zip(
            before, (eager.embedding(0), eager.linear(0)), (other.embedding(0), other.linear(0)), strict=True
        ):
            rounding = 16 * torch.finfo(old.dtype).eps * old.norm()
            off, moved = (found - exact).norm(), (exact - old).norm()
            if not off <= STEP_RTOL * moved + rounding and exact.isfinite().all():
                raise EngineError(
                    f"native step of words: distance from the eager step is {off.item():.3g}, and the eager step moves by "
                    f"{moved.item():.3g}. Train with --engine eager and report this."
                )
        self._native = _NativeWords(library, self.shape, self._batch_size(0))

    def advance(self, until: int, divergence: Divergence) -> bool:
        """Take a step, or native ones for a fraction of a second, up to step `until`. Return whether divergence was checked."""
        if self._native is not None:
            self._take_native_steps(self._native, until - self.step_count, divergence)
            return True
        return divergence.check_if_due(self.step(), self.step_count - 1)

    def _take_native_steps(self, native: _NativeWords, most: int, divergence: Divergence | None) -> Tensor:
        """Take at least one step and return the losses of the last, [T]."""
        steps = range(self.step_count, self.step_count + min(most, native.pace.steps_per_call))
        word_scale_T, linear_scale_T = _doubles(self._word_scales), _doubles(self._linear_scales)
        batches = [self._next_sentences(trial) for _ in steps for trial in range(self.num_trials)]
        loss_T = self._words_TVD.new_empty(self.num_trials)
        native.set_fields(
            num_trials=self.num_trials,
            num_steps=len(steps),
            first_step=steps.start,
            words_TVD=self._words_TVD,
            linear_TKM=self._linear_TKM,
            word_scale_T=word_scale_T,
            linear_scale_T=linear_scale_T,
            epoch_T3=self._epoch_T3,
            rate_ST=_doubles([self.lr_at(step) for step in steps]),
            word_decay_T=_doubles([trial.embedding_decay for trial in self.trials]),
            linear_decay_T=_doubles([trial.weight_decay for trial in self.trials]),
            sentences_T=_addresses([sentences.train_NL for sentences in self.sentences]),
            order_ST=_addresses([sentences_B for sentences_B, _ in batches]),
            begins_ST=torch.tensor([int(begins_epoch) for _, begins_epoch in batches]),
            per_class_T=torch.tensor([trial.samples_per_sequence for trial in self.trials]),
            loss_T=loss_T,
            diverged_at_T=torch.full((self.num_trials,), NEVER) if divergence is None else divergence.step_T,
        )
        native.pace.run(native, len(steps))
        self._word_scales, self._linear_scales = word_scale_T.tolist(), linear_scale_T.tolist()
        self.step_count = steps.stop
        return loss_T

    @torch.no_grad()
    def step(self) -> Tensor:
        """Advance every trial by one step.

        Returns:
            Values [T], finite where a trial's outputs were: its loss for native steps, else a sum of probabilities."""
        if self._native is not None:
            return self._take_native_steps(self._native, 1, None)
        num_trials, width = self.num_trials, self.shape.width
        eps = self.shape.layer_norm_eps if self.shape.layer_norm else None
        rows, labels_TB1 = self._next_batch()
        rates = self.lr_at(self.step_count)
        table = self._words_TVD.view(-1, width)
        words_TXD = table.index_select(0, rows).view(num_trials, -1, width)  # X = B L
        words_TXD *= self._column(self._word_scales)
        features_TXD, kept = words_TXD, list[Tensor]()
        if eps is not None:
            features_TXD, *kept = torch.native_layer_norm(words_TXD, [width], None, None, eps)
        x_TBM = features_TXD.view(num_trials, labels_TB1.shape[1], -1)
        linear_scale_T11 = self._column(self._linear_scales)
        x_TBM = x_TBM * linear_scale_T11
        logits_TBK = torch.bmm(x_TBM, self._linear_TKM.mT)
        slope_TBK, sums_T, seen_T3 = _loss_slope(logits_TBK, labels_TB1)
        self._epoch_T3 += seen_T3
        slope_TXD = torch.bmm(slope_TBK, self._linear_TKM).mul_(linear_scale_T11).view(words_TXD.shape)
        if eps is not None:
            slope_TXD, *_ = torch.ops.aten.native_layer_norm_backward(
                slope_TXD, words_TXD, [width], *kept, None, None, [True, False, False]
            )
        self._decay(rates)
        # x includes the old scale of the linear layer, its gradient does not
        factors = zip(rates, self._linear_scales, linear_scale_T11.flatten().tolist(), strict=True)
        slope_TBK *= self._column([-rate / (new * old) for rate, new, old in factors])
        self._linear_TKM.baddbmm_(slope_TBK.mT, x_TBM)
        slope_TXD *= self._column([-rate / scale for rate, scale in zip(rates, self._word_scales, strict=True)])
        table.index_add_(0, rows, slope_TXD.view(-1, width))
        self._fold_scales()
        self.step_count += 1
        return sums_T

    @torch.no_grad()
    def evaluate(self, trials: Sequence[int]) -> dict[str, Tensor]:
        """Return loss and accuracy of trials on training sentences (up to 10 per sequence) and test sentences."""
        numbers = torch.tensor([self._evaluated(trial) for trial in trials], dtype=torch.float64).view(-1, 5)
        seen_T3 = self._epoch_T3[list(trials)].cpu()
        means_T2 = seen_T3[:, :2] / seen_T3[:, 2:]
        return dict(zip(_COLUMNS, (*numbers.unbind(1), *means_T2.unbind(1)), strict=True))

    def _evaluated(self, trial: int) -> tuple[float, ...]:
        of_trial, sentences = self.trials[trial], self.sentences[trial]
        linear_KLD, features_VD = self.linear(trial), self.word_features(trial)
        # the logits that each word adds to each class at each position: a sentence is a sum of rows of this table
        table_LVK = torch.matmul(features_VD, linear_KLD.permute(1, 2, 0))
        table = table_LVK.reshape(-1, self.shape.sequences)
        per_sequence = sentences.num_train // self.shape.sequences
        train_NL = sentences.train_NL.view(self.shape.sequences, per_sequence, -1)[:, :EVALUATED_PER_SEQUENCE]
        loss, accuracy = self._tested(table, train_NL)
        test_loss, test_accuracy = self._tested(
            table, sentences.test_NL.view(self.shape.sequences, -1, train_NL.shape[-1])
        )
        decay = of_trial.weight_decay * linear_KLD.double().square().sum().item()
        decay += of_trial.embedding_decay * self.embedding(trial).double().square().sum().item()
        return loss, loss + decay / 2, accuracy, test_loss, test_accuracy

    def select(self, trials: Sequence[int]) -> None:
        """Keep only these trials, unchanged to the bit."""
        index = torch.tensor(list(trials), dtype=torch.int64)
        for name in _TENSORS:
            setattr(self, name, getattr(self, name)[index])
        for name in ("trials", "sentences", "_num_steps", "_generators", "_shuffled", *_LISTS):
            values = getattr(self, name)
            setattr(self, name, [values[trial] for trial in trials])
        self._prepare()

    def state(self) -> dict[str, Any]:
        """Return the state needed to resume training, as tensors and numbers."""
        values = {name: getattr(self, name) for name in _TENSORS} | {name: [*getattr(self, name)] for name in _LISTS}
        generators = [generator.get_state() for generator in self._generators]
        return {**values, "step_count": self.step_count, "generators": generators}

    def load_state(self, state: Mapping[str, Any], trials: Sequence[int]) -> None:
        """Resume from the result of `state`: these of its trials, in this order."""
        index = torch.tensor(list(trials), dtype=torch.int64)
        self.step_count = state["step_count"]
        for name in _TENSORS:
            setattr(self, name, state[name][index].to(self.device))
        for name in _LISTS:
            setattr(self, name, [state[name][trial] for trial in trials])
        for generator, trial in zip(self._generators, trials, strict=True):
            generator.set_state(state["generators"][trial])
        self._shuffled = [None] * len(self._orders)

    def _prepare(self) -> None:
        vocabulary = self.shape.vocabulary_size
        self._offsets_T11 = (
            torch.arange(self.num_trials, dtype=torch.int32, device=self.device).view(-1, 1, 1) * vocabulary
        )

    def _column(self, values: Sequence[float]) -> Tensor:
        """Return one value per trial, [T, 1, 1]."""
        return torch.tensor(values, dtype=self._dtype, device=self.device).view(-1, 1, 1)

    def _next_batch(self) -> tuple[Tensor, Tensor]:
        """Return the table rows of each trial's batch, [T B L], and the labels, [T, B, 1]."""
        parts = [self._next_part(trial) for trial in range(self.num_trials)]
        words_TBL = torch.stack([words for words, _ in parts]) + self._offsets_T11
        return words_TBL.view(-1), torch.stack([labels for _, labels in parts]).unsqueeze(-1)

    def _next_part(self, trial: int) -> tuple[Tensor, Tensor]:
        """Return the words and labels of the next batch of a trial."""
        rows, shuffled = self._next_rows(trial), self._shuffled[trial]
        if shuffled is None:  # once per epoch, so that batches are slices
            sentences, order_N = self.sentences[trial], self._orders[trial]
            assert order_N is not None
            labels_N = order_N // (sentences.num_train // self.shape.sequences)
            shuffled = sentences.train_NL[order_N].to(self.device), labels_N.to(self.device)
            self._shuffled[trial] = shuffled
        words_NL, labels_N = shuffled
        return words_NL[rows], labels_N[rows]

    def _next_sentences(self, trial: int) -> tuple[Tensor, bool]:
        """Return the sentences [B] of a trial's next batch, and whether it starts an epoch."""
        rows, order_N = self._next_rows(trial), self._orders[trial]
        assert order_N is not None
        return order_N[rows], rows.start == 0

    def _next_rows(self, trial: int) -> slice:
        """Advance a trial through its permutation of its sentences and drop an incomplete last batch."""
        num_train, batch = self.sentences[trial].num_train, self._batch_size(trial)
        start = self._positions[trial]
        if self._orders[trial] is None or start + batch > num_train:
            if batch < num_train:
                self._orders[trial] = torch.randperm(num_train, generator=self._generators[trial])
            else:
                self._orders[trial] = torch.arange(num_train)
            self._shuffled[trial] = None
            self._epoch_T3[trial] = 0
            start = 0
        self._positions[trial] = start + batch
        return slice(start, start + batch)

    def _batch_size(self, trial: int) -> int:
        return self.shape.batch_size or self.sentences[trial].num_train

    def _decay(self, rates: Sequence[float]) -> None:
        """Apply weight decay to the scales of both matrices of every trial."""
        for position, (rate, trial) in enumerate(zip(rates, self.trials, strict=True)):
            self._word_scales[position] *= 1 - rate * trial.embedding_decay
            self._linear_scales[position] *= 1 - rate * trial.weight_decay

    def _fold_scales(self) -> None:
        for stored, scales in ((self._words_TVD, self._word_scales), (self._linear_TKM, self._linear_scales)):
            for trial, scale in enumerate(scales):
                if scale < SMALLEST_SCALE:
                    stored[trial] *= scale
                    scales[trial] = 1.0

    def _tested(self, table: Tensor, words_KSL: Tensor) -> tuple[float, float]:
        """Return mean cross-entropy and accuracy over S sentences per class, from the logits per word and position."""
        num_classes, per_class, length = words_KSL.shape
        places_L = torch.arange(length, dtype=torch.int32) * self.shape.vocabulary_size
        labels_N = torch.arange(num_classes).repeat_interleave(per_class)
        rows_NL = words_KSL.reshape(-1, length) + places_L
        loss, correct = 0.0, 0
        for start in range(0, len(rows_NL), ROWS_AT_ONCE):
            rows = rows_NL[start : start + ROWS_AT_ONCE].to(self.device)
            labels = labels_N[start : start + ROWS_AT_ONCE].to(self.device)
            logits = F.embedding_bag(rows, table, mode="sum")
            loss += F.cross_entropy(logits, labels, reduction="none").double().sum().item()
            correct += int((logits.argmax(1) == labels).sum().item())
        return loss / len(rows_NL), correct / len(rows_NL)


def _initial(trial: WordsParameters, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sample the initial embedding, N(0, 1), and linear layer, U(-1, 1)/sqrt(M), both times the initial scale."""
    generator, inputs = random_stream(trial.seed, "init"), trial.sentence_length * trial.width
    words_VD = torch.randn(trial.vocabulary_size, trial.width, generator=generator, dtype=dtype)
    linear_KM = torch.rand(trial.sequences, inputs, generator=generator, dtype=dtype) * 2 - 1
    return words_VD * trial.init_scale, linear_KM * (trial.init_scale / inputs**0.5)


def _loss_slope(logits_TBK: Tensor, labels_TB1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the derivative of the mean cross-entropy in the logits, [T, B, K], and values finite where it is, [T].

    The third result, [T, 3], holds the batch's sum of losses, correctly classified sentences (ties count) and size.
    """
    slope_TBK = torch.softmax(logits_TBK, dim=-1)
    said_TB1 = slope_TBK.gather(-1, labels_TB1)
    loss_T = -said_TB1.clamp_min(torch.finfo(said_TB1.dtype).tiny).log().double().sum((1, 2))
    # compare the outputs: near the start all probabilities agree to the last digit
    correct_T = (logits_TBK.gather(-1, labels_TB1) == logits_TBK.amax(-1, keepdim=True)).double().sum((1, 2))
    seen_T3 = torch.stack([loss_T, correct_T, torch.full_like(loss_T, labels_TB1.shape[1])], dim=1)
    sums_T = slope_TBK[..., 0].sum(1)  # one non-finite value makes its whole row non-finite
    minus_one = slope_TBK.new_full((1, 1, 1), -1.0).expand(labels_TB1.shape)
    slope_TBK.scatter_add_(-1, labels_TB1, minus_one)
    return slope_TBK.div_(logits_TBK.shape[1]), sums_T, seen_T3


def _doubles(numbers: Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _addresses(tensors: Sequence[Tensor]) -> Tensor:
    """Return the addresses of tensors, which must stay alive while the addresses are used."""
    assert all(tensor.is_contiguous() for tensor in tensors)
    return torch.tensor([tensor.data_ptr() for tensor in tensors])
