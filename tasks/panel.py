"""Report panels that combine a task's metrics. Importable without torch.

The report draws each kind of panel for any task. A task names the columns and their meaning.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ScatterPanel:
    """Scatter plot of vectors in the table `features`, coloured by label, for up to four of the stored steps."""

    kind: str
    """Kind of the rows of `features`."""
    title: str
    axes: tuple[str, str]
    """Names of the first two components of a vector."""
    group: str
    """Name of the labels, as in `concept`."""
    doc: str = ""
    """One-line explanation."""


@dataclass(frozen=True, kw_only=True)
class ProfilePanel:
    """A measured vector entry by entry on log axes, with its theoretical prediction."""

    measurement: str
    """Metric of kind vector, at the last layer. Its `entry` names the index."""
    predicted: str = ""
    """Metric that holds the prediction, or empty."""


@dataclass(frozen=True, kw_only=True)
class VerdictPanel:
    """A table with one row per setting: a metric that is a code, translated, and other metrics."""

    measurement: str
    """Metric that holds the code."""
    words: Mapping[int, str] = field(hash=False)
    """Code -> its meaning."""
    columns: tuple[str | tuple[str, str], ...] = ()
    """Metrics shown as means over trials. In a pair, the second is the prediction for the first."""
    doc: str = ""
    """One-line rule that determines the code."""


@dataclass(frozen=True, kw_only=True)
class SharePanel:
    """A share of observations at the last step against a parameter, with Wilson intervals. Drawn if the parameter varies."""

    measurement: str
    """Metric that holds the share, between 0 and 1."""
    x: str
    """Parameter on the x axis."""
    observations: tuple[str, ...]
    """Parameters whose product is the number of observations of one trial."""


@dataclass(frozen=True, kw_only=True)
class PathPanel:
    """A metric of each layer against its position on a path, with its prediction, at the last step."""

    measurement: str
    predicted: str
    """Metric that holds the prediction. Without it, the panel is not drawn."""
    x: str
    """Metric that holds the position of a layer."""


@dataclass(frozen=True, kw_only=True)
class LayerMapPanel:
    """A heat map of a metric over steps and layers, averaged over the trials of a setting."""

    measurement: str
    needs: str = ""
    """Column required to draw the panel, which marks the trials it applies to."""


@dataclass(frozen=True, kw_only=True)
class TradeOffPanel:
    """One metric against another at the last layer and step, along a parameter. Drawn if the parameter varies."""

    x: str
    y: str
    along: str
    """Parameter whose values a line joins in order."""


Panel = ScatterPanel | ProfilePanel | VerdictPanel | SharePanel | PathPanel | LayerMapPanel | TradeOffPanel
