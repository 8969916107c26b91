"""The parameters of the task `own`: those of `collapse`, and those of the user's callables. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from depthrate.tasks.collapse.schema import SCHEMA as COLLAPSE_SCHEMA
from depthrate.tasks.own.names import OwnName
from depthrate.tasks.own.references import OwnReferences, short_name
from depthrate.tasks.schema import REQUIRED, Parameter, ParameterError, ParameterSchema

OF_BUILTIN_NETWORKS = (
    *("norm", "depth", "width", "patch_size", "last_bias", "regularise", "weight_decay_features", "init", "ln_eps"),
)
"""Parameters of `collapse` that say how its own networks are made: a user's has its own."""
NOT_TAKEN = (
    *(
        "seed_scope",
        "continuation",
        "polish",
        "polish_tolerance",
        "polish_smoothing",
        "polish_memory",
        "polish_barrier",
    ),
)
"""Parameters of `collapse` that rest on what is known of its own networks and data."""
OF_TEXTS = ("context_length", "vocabulary_size")
"""How texts are read; an argument of the network with such a name is the same parameter."""
FROM_DATA = ("num_classes", "num_inputs", "in_channels", "image_size")
"""Arguments of a network that the data tells where the sweep does not: classes, numbers of a sample, channels, side; and
those of `OF_TEXTS` without a default."""

LAYERS = Parameter(
    name="layers",
    kind="str",
    nullable=True,
    default=None,
    doc="modules whose outputs are measured, by pattern, several with commas: blocks.*, norm; null: the children of the "
    "module's lists that are of one class",
)
MAPS = Parameter(
    name="maps",
    kind="str",
    choices=("mean", "flatten"),
    default="mean",
    doc="maps and tokens as they are measured: averaged over pixels and over tokens, or all numbers",
)
FLAT_INPUTS = Parameter(
    name="flat_inputs", kind="bool", default=False, doc="whether images come to the network as plain vectors"
)
DECAYED = Parameter(
    name="decayed",
    kind="str",
    nullable=True,
    default=None,
    doc="parameters that weight_decay and weight_decay_last regularise, by pattern, several with commas: *.weight; null: "
    "all of two dimensions or more",
)
TEST = Parameter(
    name="test",
    kind="bool",
    default=True,
    doc="whether the test split is measured beside the training split, if there is one",
)
DATASET_HASH = Parameter(
    name="dataset_hash",
    kind="str",
    nullable=True,
    default=None,
    doc="SHA-256 of the data's content, its first 16 digits; it is filled in, so that other content is another trial",
)
_NETWORK = (LAYERS, MAPS, FLAT_INPUTS, DECAYED)


def own_schema(
    references: OwnReferences, network_arguments: Sequence[Parameter], data_arguments: Sequence[Parameter]
) -> ParameterSchema:
    """Return the parameters of a sweep over the user's network, or data, or both.

    Raises:
        ParameterError: an argument has the name of a parameter of training, or of another argument.
    """
    removed = NOT_TAKEN if references.arch is None else (*NOT_TAKEN, *OF_BUILTIN_NETWORKS)
    ours = {name: parameter for name, parameter in COLLAPSE_SCHEMA.items() if name not in removed}
    doc = "weight decay lambda, of (lambda/2)||theta||^2 on the parameters that `decayed` chooses"
    if references.arch is not None:
        ours["arch"] = OwnName(name="arch", kind="str", choices=(short_name(references.arch),), doc="your network")
        ours["weight_decay"] = replace(ours["weight_decay"], doc=doc)
        ours["weight_decay_last"] = replace(
            ours["weight_decay_last"], doc="the same of the last linear map's weight; null: weight_decay"
        )
        ours |= {each.name: each for each in _NETWORK}
        ours |= {name: replace(ours[name], added=True) for name in OF_TEXTS}
        for name in {each.name for each in network_arguments}.intersection(OF_TEXTS):
            del ours[name]
    if references.dataset is not None:
        name = short_name(references.dataset)
        ours["dataset"] = OwnName(name="dataset", kind="str", choices=(name,), doc="your data")
        ours[DATASET_HASH.name] = DATASET_HASH
    # the files of a published set's test split may not be there; a user's data says itself whether it has one
    ours[TEST.name] = (
        TEST if references.dataset is not None else replace(TEST, default=False, doc=COLLAPSE_SCHEMA[TEST.name].doc)
    )
    arguments = _checked((*network_arguments, *data_arguments), ours)
    first = ("arch", "dataset")
    in_order = [*(ours[name] for name in first), *arguments, *(ours[name] for name in ours if name not in first)]
    return ParameterSchema(in_order)


def _checked(arguments: Iterable[Parameter], ours: dict[str, Parameter]) -> list[Parameter]:
    found: dict[str, Parameter] = {}
    for each in arguments:
        if each.name in ours:
            raise ParameterError(
                f"{each.doc.removeprefix('argument of ')} has an argument {each.name!r}, which is a parameter of training "
                f"here ({ours[each.name].doc}); rename the argument, or wrap the callable in a function of other names"
            )
        if each.name in found:
            raise ParameterError(
                f"{each.doc.removeprefix('argument of ')} and {found[each.name].doc.removeprefix('argument of ')} both "
                f"have an argument {each.name!r}; rename one of them"
            )
        is_told = each.name in FROM_DATA and not each.nullable
        is_told |= each.name in OF_TEXTS and each.default is REQUIRED
        found[each.name] = (
            replace(each, nullable=True, default=None, doc=f"{each.doc}; null: as the data has it") if is_told else each
        )
    return list(found.values())


def patterns(text: str | None) -> tuple[str, ...] | None:
    """Return the patterns of a parameter that takes several with commas; null where it is null."""
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())
