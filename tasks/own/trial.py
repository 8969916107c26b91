"""What a trial of the task `own` is made of: its data, its network, its pack. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from depthrate.tasks.collapse.schema import context_length, vocabulary_size, weight_decays
from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.data.published import PUBLISHED, load_dataset
from depthrate.tasks.data.sources import DatasetError, DataSource
from depthrate.tasks.networks.builtin import ARCHITECTURES
from depthrate.tasks.networks.module import ModuleNetwork
from depthrate.tasks.networks.network import Network
from depthrate.tasks.own.data import OwnData, prepared, shape_of
from depthrate.tasks.own.schema import FROM_DATA, OF_TEXTS, patterns
from depthrate.tasks.schema import ParameterError, ParameterSchema
from depthrate.tasks.task import Params
from depthrate.tasks.training.cost import PackShape
from depthrate.tasks.training.parameters import measured_steps, num_steps


@dataclass(frozen=True, eq=False)
class OwnTrials:
    """What the user's network and data make of parameters."""

    schema: ParameterSchema
    make: Callable[..., Any] | None
    """Returns the user's network; null: one of ours."""
    network_arguments: tuple[str, ...]
    data: OwnData | None
    """The user's; null: a published set."""
    data_arguments: tuple[str, ...]
    _networks: dict[str, Network] = field(default_factory=dict)
    """Networks made before, by all that they depend on."""

    def whole(self, params: Params) -> Dataset:
        """Return the user's data as it comes.

        Raises:
            DatasetError: it cannot be read, or is not what training takes.
        """
        assert self.data is not None
        return self.data.read({name: params[name] for name in self.data_arguments})

    def complete(self, params: dict[str, Any]) -> None:
        """Fill in the content's hash, and what the data tells a network.

        Raises:
            ParameterError: the data cannot be read, so that trials cannot be told from those of before.
        """
        try:
            if self.data is not None:
                params["dataset_hash"] = self.whole(params).content_hash[:16]
        except DatasetError as error:
            raise ParameterError(str(error)) from error
        if self.make is None:
            return
        told = _told(self.shape(params))
        for name in (*FROM_DATA, *OF_TEXTS):
            if name in self.network_arguments and params[name] is None:
                params[name] = told.get(name)

    def shape(self, params: Params) -> DataShape:
        """Return the shape of the training set."""
        if self.data is not None:
            return shape_of(self.whole(params), params["samples_per_class"], params["dtype"])
        return PUBLISHED[params["dataset"]].shape(
            samples_per_class=params["samples_per_class"], dtype=params["dtype"], **_texts(params)
        )

    def network(self, params: Params, data: DataShape) -> Network:
        """Return the trial's network.

        Raises:
            ParameterError: it cannot be made of these arguments, or does not read this data.
        """
        if self.make is None:
            try:
                return ARCHITECTURES[params["arch"]].make(params, data)
            except ValueError as error:
                raise ParameterError(f"arch {params['arch']!r}: {error}") from error
        arguments = {name: params[name] for name in self.network_arguments}
        key = repr((arguments, data.sample_shape, data.num_classes, data.vocabulary_size))
        key += repr([params[name] for name in ("layers", "maps", "flat_inputs", "decayed")])
        if key not in self._networks:
            seen = replace(data, sample_shape=(data.num_inputs,)) if params["flat_inputs"] else data
            self._networks[key] = ModuleNetwork(
                make=self.make,
                name=params["arch"],
                arguments=arguments,
                data=seen,
                patterns=patterns(params["layers"]),
                maps=params["maps"],
                decayed=patterns(params["decayed"]),
            )
        return self._networks[key]

    def load(self, params: Params, source: DataSource) -> Dataset:
        """Return what a trial trains on, with its test split where that is wanted.

        Raises:
            DatasetError: it is missing, damaged, or not what it was when the trial was planned.
        """
        if self.data is None:
            return load_dataset(
                params["dataset"],
                source,
                samples_per_class=params["samples_per_class"],
                data_seed=params["data_seed"],
                normalize=params["normalize"],
                dtype=params["dtype"],
                test=params["test"],
                **_texts(params),
            )
        whole = self.whole(params)
        if whole.content_hash[:16] != params["dataset_hash"]:
            raise DatasetError(
                f"{self.data.name} has changed since the trial was planned (content {whole.content_hash[:16]}, planned "
                f"{params['dataset_hash']}); start the sweep again: what has other content is another trial"
            )
        return prepared(
            whole,
            self.data.name,
            samples_per_class=params["samples_per_class"],
            data_seed=params["data_seed"],
            normalize=params["normalize"],
            dtype=params["dtype"],
            test=params["test"],
        )

    def pack_shape(self, params: Params) -> PackShape:
        """Return what the memory and the time of a pack of such trials depend on."""
        data = self.shape(params)
        steps = num_steps(params, data.num_samples)
        return PackShape(
            network=self.network(params, data),
            data=data,
            batch_size=params["batch_size"],
            num_steps=steps,
            num_measured_steps=len(measured_steps(params, steps)),
            optimizer=params["optimizer"],
            dtype=params["dtype"],
        )

    def weight_decays(self, params: Params) -> Mapping[str, float]:
        """Return the weight decay of each group."""
        return weight_decays(params)


def _texts(params: Params) -> dict[str, int]:
    """Return how texts are read; numbers where the data is no text, which nobody reads."""
    return {"context_length": context_length(params), "vocabulary_size": vocabulary_size(params)}


@lru_cache(maxsize=64)
def _told(data: DataShape) -> dict[str, int]:
    """Return the arguments that the data's shape answers."""
    told = {"num_classes": data.num_classes, "num_inputs": math.prod(data.sample_shape)}
    if data.vocabulary_size is not None:
        told |= {"context_length": data.num_inputs, "vocabulary_size": data.vocabulary_size}
    if len(data.sample_shape) == 3:
        told |= {"in_channels": data.sample_shape[0], "image_size": data.sample_shape[-1]}
    return told
