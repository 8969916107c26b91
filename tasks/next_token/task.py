"""The task `next_token`, with networks and data of ours or of the user's. Importable without torch.

It is `own` in all but what a sample has: a label a token, the token after it, in the loss and in what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.data.markov import MARKOV
from depthrate.tasks.data.published import READING_TEXT_BYTES, check_dataset
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.next_token.data import drawn, sequences_of_arrays, sequences_of_ours
from depthrate.tasks.next_token.measurements import MEASUREMENTS
from depthrate.tasks.next_token.schema import DEFAULT_SAMPLES, NextTokenParameters, reading
from depthrate.tasks.next_token.streamed import StreamedTokens
from depthrate.tasks.own.arrays import Arrays
from depthrate.tasks.own.references import NEXT_TOKEN as NAME
from depthrate.tasks.own.references import OwnReferences
from depthrate.tasks.own.schema import OwnParameters, own_schema
from depthrate.tasks.own.task import Own, check_drawn, check_streaming, check_texts
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.task import Params
from depthrate.tasks.training.parameters import check_training

if TYPE_CHECKING:
    from depthrate.tasks.networks.network import Layer, Network
    from depthrate.tasks.training.training import NetworkTraining


@dataclass(frozen=True, kw_only=True, eq=False)
class NextToken(Own):
    """Causal networks on the token after each."""

    name: str = NAME
    doc: str = (
        "Train causal networks on the token after each, and measure the collapse of language models layer by layer."
    )
    parameters = NextTokenParameters
    measurements = MEASUREMENTS
    streamed_of = StreamedTokens

    @staticmethod
    def dataset_of(arrays: Arrays, name: str) -> Dataset:
        """Return the user's arrays as sequences with a label a token.

        Raises:
            DatasetError: they are not what training takes.
        """
        return sequences_of_arrays(arrays, name)

    def published_sets(self, trial: OwnParameters) -> Sequence[str]:
        """Return the data set that it reads from files, where it is not the user's."""
        return () if self.data is not None or trial.dataset == MARKOV else (trial.dataset,)

    def check_data(self, trials: Sequence[Params], source: DataSource) -> None:
        """Refuse trials whose data set is not there; a test split is other sequences of the same.

        Raises:
            DatasetError: saying where it looked and how to get the files.
        """
        for name in self._published_sets(self.read(params) for params in trials):
            check_dataset(name, source)

    def held_shape(self, whole: Dataset, trial: OwnParameters) -> DataShape:
        """Return the shape of the user's sequences in memory."""
        assert isinstance(trial, NextTokenParameters)
        shape = whole.shape
        return replace(shape, num_samples=trial.samples or shape.num_samples, reading_bytes=4 * shape.reading_bytes)

    def published_shape(self, trial: OwnParameters) -> DataShape:
        """Return the shape of sequences of ours."""
        assert isinstance(trial, NextTokenParameters)
        length, vocabulary_size = reading(trial)
        number = trial.samples or DEFAULT_SAMPLES
        return DataShape(
            num_samples=number,
            sample_shape=(length,),
            num_classes=vocabulary_size,
            vocabulary_size=vocabulary_size,
            labels_tokens=True,
            # of markov a row of transitions for each sequence, of reviews all stretches of them
            reading_bytes=8 * 3 * number * vocabulary_size if trial.dataset == MARKOV else 2 * READING_TEXT_BYTES,
        )

    def load_published(self, trial: OwnParameters, source: DataSource) -> Dataset:
        """Return sequences of a chain or of reviews.

        Raises:
            DatasetError: reviews are missing, damaged, or fewer than asked for.
        """
        assert isinstance(trial, NextTokenParameters)
        return sequences_of_ours(trial, source)

    def prepare_held(self, whole: Dataset, trial: OwnParameters) -> Dataset:
        """Return what a trial on the user's sequences in memory trains on."""
        assert isinstance(trial, NextTokenParameters)
        return drawn(whole, trial.samples, trial.data_seed, trial.test)

    @staticmethod
    def measured_width(layer: Layer) -> int:
        """Return the numbers of one position's feature."""
        return layer.shape[-1]

    @staticmethod
    def training_on(dataset: Dataset, trials: Sequence[OwnParameters], network: Network) -> NetworkTraining:
        """Return what a pack of trials does with a data set."""
        from depthrate.tasks.next_token.pack import training

        return training(trials, dataset, network)  # type: ignore[arg-type]

    def check(self, trial: OwnParameters) -> None:
        """Refuse combinations that cannot run; this builds a user's network and runs it once.

        Raises:
            ParameterError: naming the parameters that exclude each other.
        """
        assert isinstance(trial, NextTokenParameters)
        check_texts(self, trial, is_text=self.data is None)
        whole = None if self.data is None else self.whole(trial)
        check_streaming(trial, whole, samples=trial.samples)
        if whole is not None:
            check_drawn(trial, trial.samples, whole.num_samples)
        data = self.data_shape(trial)
        check_training(trial, data.num_samples)
        if trial.dataset != MARKOV:
            given = [name for name in ("order", "zipf", "sharpness") if name in self.schema]
            for name in given:
                if getattr(trial, name) != self.schema[name].default:
                    raise ParameterError(
                        f"{name} is {getattr(trial, name)}, but {trial.dataset!r} is no chain; leave it at "
                        f"{self.schema[name].default}"
                    )
        for layer in self.network(trial, data).layers():
            if len(layer.shape) != 2 or layer.shape[0] != data.num_inputs:
                raise ParameterError(
                    f"layer {layer.name} of {trial.arch} gives {list(layer.shape)} for a sequence, and next tokens are "
                    f"measured position by position; name modules in layers that give [N, {data.num_inputs}, numbers]"
                )


NEXT_TOKEN = NextToken(
    schema=own_schema(OwnReferences(task=NAME), (), (), NextTokenParameters),
    make=None,
    network_arguments=(),
    data=None,
    data_arguments=(),
    code=None,
    defined_at="",
    distinguished_by="",
)
