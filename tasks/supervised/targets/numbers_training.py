"""Trainer of trials on numbers, and the metrics of their layers.

Shapes: T trials, N samples, D numbers per feature, m numbers per target.
"""

from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.measures.geometry import component_collapse, weight_collapse
from depthrate.tasks.measures.linear_probe import probe_r2
from depthrate.tasks.measures.named import Named, NamedMeasurements, measure_per_trial
from depthrate.tasks.training.layers import LayerMeasurements
from depthrate.tasks.training.trainer import FusedTrainer


class NumbersTrainer(FusedTrainer):
    """Trains on targets [N, m] instead of labels."""

    def num_correct(self, logits_TBK: Tensor, labels_TB: Tensor) -> Tensor:
        """Return NaN [T], since numbers have no accuracy."""
        return torch.full((len(logits_TBK),), torch.nan, dtype=torch.float64, device=logits_TBK.device)

    def evaluate(self) -> dict[str, Tensor]:
        evaluation = super().evaluate()
        return {**evaluation, "r_squared": self._r_squared(evaluation["loss"])}

    def scores(self) -> dict[str, Tensor]:
        loss_T = super().scores()["loss"]
        return {"loss": loss_T, "r_squared": self._r_squared(loss_T)}

    def _r_squared(self, loss_T: Tensor) -> Tensor:
        y_Nm = self.labels_N.double()
        return 1 - 2 * loss_T / (y_Nm - y_Nm.mean(0)).square().sum(1).mean()


def layer_measurements(targets: Any, names: Named, *, split: str = "train") -> LayerMeasurements:
    """Build the metrics of a layer with targets [N, m]: NRC1, NRC2, NRC3 and the named ones."""
    y_Nm = torch.as_tensor(targets).double()
    named = NamedMeasurements(names, lambda h_ND: probe_r2(h_ND, y_Nm), y_Nm)

    def reduce(h_TND: Tensor, weight_TmD: Tensor | None) -> dict[str, Tensor]:
        h_TND = h_TND.double()
        nrc1_T = measure_per_trial(lambda h_ND: component_collapse(h_ND, y_Nm.shape[1]), h_TND)
        columns = {"nrc1": nrc1_T} | named.measure_alone(h_TND, weight_TmD)
        if weight_TmD is not None:
            on_device_Nm, weight_TmD = y_Nm.to(h_TND.device), weight_TmD.double()
            for name in ("nrc2", "nrc3"):
                columns[name] = measure_per_trial(
                    lambda h_ND, w_mD, name=name: weight_collapse(h_ND, on_device_Nm, w_mD)[name], h_TND, weight_TmD
                )
        return columns

    return LayerMeasurements(
        reduce, split=split, of_pair=named.measure_against_others if named.needs_other_layers else None
    )
