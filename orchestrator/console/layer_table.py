"""Print fits over layers, one row per depth."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from depthrate.orchestrator.analysis.layer_law import LayerLaw, decays_over_depth
from depthrate.orchestrator.console.tables import print_table


def print_layer_laws(console: Console, laws: Sequence[LayerLaw]) -> None:
    """Print the law of equi-separation of each depth, and how rho changes with depth."""
    if not laws:
        return
    rows: list[list[Any]] = []
    for law in laws:
        values, fit = law.values, law.fit
        name = [values.metric, values.label(), law.depth]
        if fit is None:
            rows.append([*name, "no fit", "", "", "", "", len(values.rows), law.note])
            continue
        ends = "" if (ends := fit.rho_interval) is None else f" [{ends[0]:.3f}, {ends[1]:.3f}]"
        tests = [
            f"{value:.{digits}}" if value is not None else ""
            for value, digits in ((fit.r, "4f"), (fit.p_lack_of_fit, "2g"))
        ]
        numbers = [f"{fit.rho:.4f}{ends}", *tests, f"{law.depth * fit.fit.exponent:.2f}" if law.depth else ""]
        rows.append([*name, *numbers, f"{fit.fit.prefactor:.3g}", len(values.rows), values.excluded_text])
    columns = [
        "metric",
        "group",
        "L",
        "rho [95 %]",
        "r",
        "p(straight)",
        "-L log rho",
        "at layer 0",
        "trials",
        "left out",
    ]
    kept = [i for i in range(len(columns)) if columns[i] not in ("group", "left out") or any(row[i] for row in rows)]
    print_table(console, [columns[i] for i in kept], [[row[i] for i in kept] for row in rows])
    for law, decay in decays_over_depth(laws):
        group = f" ({label})" if (label := law.values.label()) else ""
        ends = "" if decay.ci_low is None else f" [{decay.ci_low:.3f}, {decay.ci_high:.3f}]"
        power = f"{decay.prefactor:.3g} L^{-decay.exponent:.3f}, exponent {decay.exponent:.3f}{ends}"
        text = f"{law.values.metric}{group}: -log rho = {power}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
