"""What a task wants drawn in the report beyond its measurements one by one. Importable without torch.

The report draws each kind of panel, whatever the task; a task names columns and says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ScatterPanel:
    """Vectors of the table `features` as points, coloured by label; with a slider where several steps are kept."""

    kind: str
    """The rows of features that have this kind."""
    title: str
    axes: tuple[str, str]
    """What the first two numbers of a vector are called."""
    group: str
    """What a label is called, as in `concept`."""
    doc: str = ""
    """How to read it, one line."""


@dataclass(frozen=True, kw_only=True)
class ProfilePanel:
    """A measured vector, entry by entry on log axes, beside what theory predicts for it."""

    measurement: str
    """A measurement of kind vector, at the last layer; its `entry` names the index."""
    predicted: str = ""
    """The measurement that holds the prediction; empty: there is none."""


@dataclass(frozen=True, kw_only=True)
class VerdictPanel:
    """A table with a row a setting: what a code among the measurements says in words, and measurements beside it."""

    measurement: str
    """The measurement that is a code."""
    words: Mapping[int, str] = field(hash=False)
    """Code -> what it says."""
    columns: tuple[str | tuple[str, str], ...] = ()
    """Measurements shown as a mean over the trials; of a pair the second is what theory predicts for the first."""
    doc: str = ""
    """The rule by which the code is found, one line."""


@dataclass(frozen=True, kw_only=True)
class SharePanel:
    """A share of observations at the last step against a parameter, with Wilson intervals; drawn where the parameter varies."""

    measurement: str
    """The share, between 0 and 1."""
    x: str
    """The parameter."""
    observations: tuple[str, ...]
    """Parameters whose product is the number of observations of one trial."""


@dataclass(frozen=True, kw_only=True)
class PathPanel:
    """A measurement of each layer against its place on a path, beside what is predicted there; at the last step."""

    measurement: str
    predicted: str
    """The measurement that holds the prediction; nothing is drawn without it."""
    x: str
    """The measurement that says where a layer stands."""


@dataclass(frozen=True, kw_only=True)
class LayerMapPanel:
    """A heat map of a measurement over steps and layers, averaged over the trials of a setting."""

    measurement: str
    needs: str = ""
    """A column without which nothing is drawn, as a mark of the trials that it is for."""


@dataclass(frozen=True, kw_only=True)
class TradeOffPanel:
    """A measurement against another at the last layer and step, along a parameter; drawn where that varies."""

    x: str
    y: str
    along: str
    """The parameter whose values are joined by a line, in their order."""


Panel = ScatterPanel | ProfilePanel | VerdictPanel | SharePanel | PathPanel | LayerMapPanel | TradeOffPanel
