"""Print fits over layers, one row per depth."""

from collections.abc import Sequence

from rich.console import Console

from depthrate.orchestrator.analysis.layer_law import HEADER, LayerLaw, decay_texts
from depthrate.orchestrator.console.tables import print_table


def print_layer_laws(console: Console, laws: Sequence[LayerLaw]) -> None:
    """Print the law of equi-separation of each depth, and how rho changes with depth."""
    if laws:
        print_table(
            console, ["metric", "group", *HEADER], [[law.values.metric, law.values.label(), *law.cells] for law in laws]
        )
    for name, text in decay_texts(laws):
        console.print(f"{name}: {text}", markup=False, highlight=False, soft_wrap=True)
