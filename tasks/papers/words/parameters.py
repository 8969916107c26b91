"""Parameters of the task `words` and values derived from them. Importable without torch.

Source: Feature Collapse (Laurent, von Brecht and Bresson 2023). Defaults are those of its Figure 3. Brackets: its symbols.
"""

from typing import Literal

from depthrate.tasks.parameters import parameter
from depthrate.tasks.training import parameters as training


class WordsParameters(training.TrainingParameters):
    """Parameters of a `words` trial."""

    concepts: int = parameter(3, minimum=2, doc="number of concepts [n_c]")
    vocabulary_size: int = parameter(1200, minimum=2, doc="number of words [n_w], the same number in each concept")
    sentence_length: int = parameter(15, minimum=1, doc="words of a sentence [L]")
    sequences: int = parameter(
        1000, minimum=2, doc="latent sequences of concepts, the classes [K]: distinct, drawn uniformly"
    )
    samples_per_sequence: int = parameter(5, minimum=1, fusible=True, doc="training sentences of a sequence [n_spl]")
    test_samples_per_sequence: int = parameter(
        5, minimum=1, fusible=True, doc="fresh sentences of a sequence for the test accuracy"
    )
    zipf: float = parameter(
        0.0,
        minimum=0,
        fusible=True,
        doc="exponent of word frequencies: the b-th word of a concept is drawn as 1 / b^zipf. 0: uniform, 1: Zipf's law",
    )
    data_seed: int | None = parameter(
        None,
        minimum=0,
        fusible=True,
        null="seed",
        doc="seed of sequences and sentences. null: the trial's seed, so that they differ between seeds",
    )
    layer_norm: bool = parameter(
        False, doc="LayerNorm without parameters after the embedding: the network h*. false: the network h"
    )
    layer_norm_eps: float = parameter(1e-5, minimum=0, doc="number added to the variance in LayerNorm")
    width: int = parameter(100, minimum=1, doc="dimension of the embedding [d]")
    lr: float = parameter(0.1, above=0, fusible=True, doc="learning rate of sgd")
    schedule: training.Schedule = parameter("constant")
    steps: training.Steps
    epochs: training.Epochs
    batch_size: training.BatchSize = parameter(100)
    weight_decay: float = parameter(
        0.001,
        minimum=0,
        fusible=True,
        doc="lambda of (lambda/2)||U||^2 on the linear layer, and of the embedding unless weight_decay_embedding is set",
    )
    weight_decay_embedding: float | None = parameter(
        None,
        minimum=0,
        fusible=True,
        null="case when layer_norm then 0.0 else weight_decay end",
        doc="lambda of the embedding. null: weight_decay, or 0 with layer_norm",
    )
    init_scale: float = parameter(
        0.001,
        above=0,
        fusible=True,
        doc="factor on the start: N(0, 1) for the embedding, U(-1, 1)/sqrt(L d) for the linear layer",
    )
    dtype: training.Dtype
    seed: training.Seed
    features: Literal["none", "projection", "projections"] = parameter(
        "none",
        fusible=True,
        doc="first three principal components of words and of blocks of the linear layer, kept at the end or at every "
        "measured step",
    )
    measure_steps: training.MeasureSteps

    @property
    def words_per_concept(self) -> int:
        return self.vocabulary_size // self.concepts

    @property
    def num_sentences(self) -> int:
        """Size N of the training set."""
        return self.sequences * self.samples_per_sequence

    @property
    def num_steps(self) -> int:
        return training.num_steps(self, self.num_sentences)

    @property
    def embedding_decay(self) -> float:
        """Weight decay lambda of the embedding."""
        if self.weight_decay_embedding is not None:
            return self.weight_decay_embedding
        return 0.0 if self.layer_norm else self.weight_decay
