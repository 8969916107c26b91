"""Metrics requested by name are in the layers' rows and equal the public functions; others are not in the rows."""

import numpy as np
import pytest
import torch

import depthrate
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.load import sweep_of_spec
from depthrate.sweeps.spec import check_figures, check_fits
from depthrate.tasks.measures.geometry import component_collapse
from depthrate.tasks.measures.named import measure_per_trial
from depthrate.tasks.measures.named_columns import NAMES
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.task import COLLAPSE
from tests.support.own_data import dataset_of
from tests.support.training_context import training_on

LABELS = np.repeat(np.arange(3), [20, 30, 25])
DATA = dataset_of(np.random.default_rng(0).normal(size=(75, 12)).astype("float32"), LABELS)


@pytest.mark.parametrize("largest", [1e200, np.inf])
def test_unsquarable_features_affect_no_neighbour(largest):
    h_TND = torch.randn(2, 75, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h_TND[0, 0] = largest
    nrc1_T = measure_per_trial(lambda h_ND: component_collapse(h_ND, 2), h_TND)
    assert not 0 <= nrc1_T[0] <= 1 or np.isfinite(largest)
    assert 0 < nrc1_T[1] < 1


def of_names(row):
    return {name: row[name] for name in NAMES}


@pytest.mark.parametrize("arch", ["rn1", "resnet_dense"])
def test_rows_equal_functions_in_any_pack(arch):
    shared = {"arch": arch, "depth": 3, "width": 9, "steps": 5}
    trials = [COLLAPSE.schema.fill({**shared, "seed": seed, "measure": " , ".join(NAMES)}) for seed in range(3)]
    training = training_on(trials, DATA)
    trainer = training.begin()
    trainer.step()
    together = training.measure(trainer, range(3), 1)
    alone = [training.measure(trainer, [position], 1)[0] for position in range(3)]
    assert [[of_names(row) for row in rows] for rows in together] == [[of_names(row) for row in rows] for rows in alone]
    layers = [h[0].flatten(1) for h in trainer.features(2)]
    rows = together[2][-len(layers) :]
    for row, h_ND in zip(rows, layers, strict=True):
        assert of_names(row) == pytest.approx(
            {
                "effective_rank": depthrate.effective_rank(h_ND),
                "intrinsic_dimension": depthrate.intrinsic_dimension(h_ND),
                "linear_probe": depthrate.probe_accuracy(h_ND, LABELS),
                "cka_input": depthrate.linear_cka(DATA.x_NI, h_ND),
                "cka_last": depthrate.linear_cka(h_ND, layers[-1]),
            }
        )
    assert rows[-1]["cka_last"] == pytest.approx(1) and rows[0]["cka_last"] < 0.999
    few = training_on([COLLAPSE.schema.fill({**shared, "measure": "linear_probe"})], DATA)
    assert not {"cka_last", "effective_rank"} & set(few.measure(few.begin(), [0], 0)[0][0])
    plain = training_on([COLLAPSE.schema.fill({**shared, "seed": 2})], DATA)
    assert not set(NAMES) & set(plain.measure(plain.begin(), [0], 0)[0][0])


def test_undefined_metrics_are_none():
    trials = [COLLAPSE.schema.fill({"arch": "rn1", "depth": 2, "width": 4, "measure": ", ".join(NAMES)})]
    training = training_on(trials, DATA)
    trainer = training.begin()
    trainer.theta_TP.zero_()
    last = training.measure(trainer, [0], 0)[0][-1]
    assert of_names(last) == dict.fromkeys(NAMES)


def test_probe_measures_them_for_any_module():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    first, *others = depthrate.probe(model, (DATA.x_NI, LABELS), layers="0", measure="cka_input, cka_last")
    assert first["cka_input"] == pytest.approx(1) and first["cka_last"] == pytest.approx(others[-1]["cka_input"])
    assert others[-1]["cka_last"] == pytest.approx(1)
    with pytest.raises(ParameterError, match=r"'cka', expected effective_rank.*id you mean 'cka_\w+'"):
        depthrate.probe(model, (DATA.x_NI, LABELS), measure="cka")


def test_fits_and_figures_need_the_metric():
    def sweep(**params):
        spec = {"params": {"arch": "rn1", **params}, "grid": {"depth": [2]}, "fit": [{"metric": "cka_last"}]}
        return sweep_of_spec({"name": "s", "task": "collapse", "figures": [FIGURE], **spec})

    check_fits(sweep(measure="linear_probe,cka_last"), COLLAPSE)
    check_figures(sweep(measure="linear_probe,cka_last"), COLLAPSE)
    for check, place in ((check_fits, "fit"), (check_figures, "figures")):
        with pytest.raises(SweepError, match=rf"{place} uses 'cka_last'.* Set params \{{measure: cka_last\}}"):
            check(sweep(measure="linear_probe"), COLLAPSE)
    for wrong, words in (("cka_lsat", "did you mean 'cka_last'"), ("cka_last, cka_last", "twice")):
        with pytest.raises(ParameterError, match=words):
            COLLAPSE.check_trial(COLLAPSE.schema.fill({"arch": "rn1", "depth": 2, "measure": wrong}))


FIGURE = {"kind": "curve", "metric": "cka_last", "x": "depth"}
