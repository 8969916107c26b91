"""The parameters of the task `own`: those of `collapse`, and those of the user's callables. Importable without torch."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from depthrate.tasks.collapse.schema import CollapseParameters
from depthrate.tasks.own.items import STREAMED_BYTES, STREAMED_ITEMS
from depthrate.tasks.own.references import OwnReferences, is_own, short_name
from depthrate.tasks.own.streamed import MEASURED, MEASURED_OF_A_CLASS
from depthrate.tasks.parameters import (
    REQUIRED,
    Kind,
    Parameter,
    ParameterError,
    ParameterSchema,
    kind_of_hint,
    parameter,
)

OF_BUILTIN_NETWORKS = (
    *("norm", "depth", "width", "patch_size", "last_bias", "regularise", "weight_decay_features", "init", "ln_eps"),
)
"""Parameters of `collapse` that say how its own networks are made: a user's has its own."""
OF_TEXTS = ("context_length", "vocabulary_size")
"""How texts are read; an argument of the network with such a name is the same parameter."""
FROM_DATA = ("num_classes", "num_inputs", "in_channels", "image_size")
"""Arguments of a network that the data tells where the sweep does not: classes, numbers of a sample, channels, side; and
those of `OF_TEXTS` without a default."""


class OwnParameters(CollapseParameters):
    """What a trial of `own` has, beside the arguments of the user's callables; what it does not take is what it is here."""

    layers: str | None = parameter(
        None,
        doc="modules whose outputs are measured, by pattern, several with commas: blocks.*, norm; null: the children of the "
        "module's lists that are of one class",
    )
    maps: Literal["mean", "flatten"] = parameter(
        "mean", doc="maps and tokens as they are measured: averaged over pixels and over tokens, or all numbers"
    )
    flat_inputs: bool = parameter(False, doc="whether images come to the network as plain vectors")
    decayed: str | None = parameter(
        None,
        doc="parameters that weight_decay and weight_decay_last regularise, by pattern, several with commas: *.weight; null: "
        "all of two dimensions or more",
    )
    dataset_hash: str | None = parameter(
        None,
        doc="SHA-256 of the data's content, its first 16 digits; it is filled in, so that other content is another trial",
    )
    stream: bool | None = parameter(
        None,
        added_later=True,
        doc="whether samples are read when a batch draws them instead of held in memory; null: where they are more than "
        f"{STREAMED_BYTES / 1e9:g} GB, or more than {STREAMED_ITEMS:,} items of a data set",
    )
    measure_samples: int | None = parameter(
        None,
        minimum=2,
        added_later=True,
        doc="samples of streamed data, drawn by data_seed, of which loss and layers are measured, as many of each class; null: "
        f"{MEASURED:,}, or {MEASURED_OF_A_CLASS} a class where that is more",
    )
    test: bool = parameter(True, doc="whether the test split is measured beside the training split, if there is one")
    arguments: Mapping[str, Any]
    """Those of the user's callables."""
    seed_scope = "seed"
    standardize = False
    continuation = ()  # type: ignore[assignment]
    polish = 0
    polish_tolerance = 0.0
    polish_smoothing = ()  # type: ignore[assignment]
    polish_memory = 0
    polish_barrier = 0.0
    of_published: ClassVar[tuple[str, ...]] = ()
    """Parameters that say something of published sets alone."""


_NETWORK = ("layers", "maps", "flat_inputs", "decayed")
_DATA = ("dataset_hash", "stream", "measure_samples")


@dataclass(frozen=True, kw_only=True)
class OwnName(Parameter):
    """`arch` or `dataset`, where it is the user's."""

    def check(self, value: Any) -> Any:
        """Return the name without the folder.

        Raises:
            ParameterError: it is another one.
        """
        return super().check(short_name(value) if is_own(self.name, value) else value)


def own_schema(
    references: OwnReferences,
    network_arguments: Sequence[Parameter],
    data_arguments: Sequence[Parameter],
    parameters: type[OwnParameters] = OwnParameters,
    from_data: Sequence[str] = FROM_DATA,
) -> ParameterSchema:
    """Return the parameters of a sweep over the user's network, or data, or both.

    parameters: of the task; from_data: arguments of the network that the data tells.

    Raises:
        ParameterError: an argument has the name of a parameter of training, or of another argument.
    """
    declared = parameters.schema
    removed = {*_NETWORK, *_DATA, *(() if references.arch is None else OF_BUILTIN_NETWORKS)}
    removed.update(() if references.dataset is None else parameters.of_published)
    ours = {name: parameter for name, parameter in declared.items() if name not in removed}
    doc = "weight decay lambda, of (lambda/2)||theta||^2 on the parameters that `decayed` chooses"
    if references.arch is not None:
        ours["arch"] = OwnName(name="arch", kind="str", choices=(short_name(references.arch),), doc="your network")
        ours["weight_decay"] = replace(ours["weight_decay"], doc=doc)
        ours["weight_decay_last"] = replace(
            ours["weight_decay_last"], doc="the same of the last linear map's weight; null: weight_decay"
        )
        ours |= {name: declared[name] for name in _NETWORK if name in declared}
        ours |= {name: replace(ours[name], added_later=True) for name in OF_TEXTS if name in ours}
        for name in {argument.name for argument in network_arguments}.intersection(OF_TEXTS):
            ours.pop(name, None)
    if references.dataset is not None:
        name = short_name(references.dataset)
        ours["dataset"] = OwnName(name="dataset", kind="str", choices=(name,), doc="your data")
        ours |= {name: declared[name] for name in _DATA}
    else:  # the files of a published set's test split may not be there; a user's data says itself whether it has one
        ours["test"] = replace(ours["test"], default=False, doc=CollapseParameters.schema["test"].doc)
    arguments = _checked((*network_arguments, *data_arguments), ours, from_data)
    first = ("arch", "dataset")
    in_order = [*(ours[name] for name in first), *arguments, *(ours[name] for name in ours if name not in first)]
    return ParameterSchema(in_order)


def _checked(arguments: Iterable[Parameter], ours: dict[str, Parameter], from_data: Sequence[str]) -> list[Parameter]:
    checked: dict[str, Parameter] = {}
    for argument in arguments:
        name, owner = argument.name, argument.doc.removeprefix("argument of ")
        if name in ours:
            raise ParameterError(
                f"{owner} has an argument {name!r}, which is a parameter of training "
                f"here ({ours[name].doc}); rename the argument, or wrap the callable in a function of other names"
            )
        if name in checked:
            raise ParameterError(
                f"{owner} and {checked[name].doc.removeprefix('argument of ')} both "
                f"have an argument {name!r}; rename one of them"
            )
        is_told = name in from_data and not argument.nullable
        is_told |= name in OF_TEXTS and argument.default is REQUIRED
        if is_told:
            argument = replace(argument, nullable=True, default=None, doc=f"{argument.doc}; null: as the data has it")
        checked[name] = argument
    return list(checked.values())


def parameters_of_callable(function: Callable[..., Any], name: str) -> list[Parameter]:
    """Read parameters off a callable that was not written for sweeps: arguments need no annotation.

    Where there is none, the default's type holds; without a default any scalar is taken. What no sweep can give (a class, a
    function) keeps its default, as do *args and **kwargs.

    Raises:
        ParameterError: an argument without a default takes something that no sweep can give.
    """
    inner = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(inner)
    except Exception:  # of names that only its author's type checker can resolve
        hints = {}
    parameters = []
    for argument in inspect.signature(function).parameters.values():
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            continue
        kind, nullable, choices = _kind_of_argument(hints.get(argument.name), argument)
        if kind is not None:
            default = REQUIRED if argument.default is argument.empty else argument.default
            made = Parameter(
                name=argument.name, kind=kind, nullable=nullable, choices=choices, doc=f"argument of {name}"
            )
            parameters.append(made if default is REQUIRED else replace(made, default=made.check(default)))
        elif argument.default is argument.empty:
            raise ParameterError(
                f"{name} needs {argument.name!r}, which is {hints.get(argument.name)!r}: no sweep can give that; name a "
                "function that takes numbers, texts and truth values and makes the rest itself"
            )
    return parameters


def _kind_of_argument(hint: Any, argument: inspect.Parameter) -> tuple[Kind | None, bool, tuple[Any, ...] | None]:
    """Return (kind, nullable, choices) of an argument; no kind where a sweep cannot give it."""
    default = argument.default
    if hint is not None:
        try:
            kind, nullable, choices = kind_of_hint(hint, argument.name, "")
            return kind, nullable or default is None, choices
        except ParameterError:
            if default is argument.empty or not isinstance(default, int | float | str | tuple | list):
                return None, False, None
    if default is argument.empty or default is None:
        return "scalar", default is None, None
    if isinstance(default, tuple | list):
        for kind, one in (("list[int]", int), ("list[float]", int | float)):
            if default and all(isinstance(item, one) and not isinstance(item, bool) for item in default):
                return kind, False, None
        return None, False, None
    name = type(default).__name__
    return (typing.cast(Kind, name), False, None) if name in ("bool", "int", "float", "str") else (None, False, None)


def patterns(text: str | None) -> tuple[str, ...] | None:
    """Return the patterns of a parameter that takes several with commas; null where it is null."""
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())
