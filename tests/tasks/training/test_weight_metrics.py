"""Hessian metrics against dense Hessians and closed forms; alignment of consecutive weights against numpy's SVD."""

import functools
import itertools

import numpy as np
import pytest
import torch

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.measures.alignment import consecutive_alignment
from depthrate.tasks.measures.lanczos import largest_eigenvalues, trace
from depthrate.tasks.measures.named_columns import ALIGNMENT_NAMES, HESSIAN_NAMES
from depthrate.tasks.networks.flat_parameters import split_parameters
from depthrate.tasks.networks.module import ModuleNetwork
from depthrate.tasks.papers.unconstrained.task import DUFM
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.step import losses
from depthrate.tasks.training.training_pack import run_training
from depthrate.tasks.training.weight_metrics import check_products
from tests.support.own_data import dataset_of
from tests.support.training_context import Context, ids_of, training_on

LABELS = np.repeat(np.arange(3), 10)
DATA = dataset_of(np.random.default_rng(0).normal(size=(30, 4)), LABELS)
HESSIAN = ", ".join(HESSIAN_NAMES)
SMALL = {"depth": 2, "width": 4, "steps": 20, "dtype": "float64", "measure": HESSIAN, "weight_decay": 0.01}


def generator():
    return torch.Generator().manual_seed(0)


def collapse(**params):
    filled = COLLAPSE.schema.fill(SMALL | params)
    COLLAPSE.check_trial(filled)
    return filled


def last_rows(trials, make=training_on):
    """Return each trial's last row of its last layer, and the trainer."""
    training = make(trials, DATA)
    results = run_training(training, Context(ids_of(trials)))
    return [[row for row in result.tables["metrics"] if row["is_last"]][-1] for result in results]


def dense_hessian(trial):
    """Return the Hessian of the objective at the end of a trial's training, by torch.func, in the network's order."""
    training = training_on([trial], DATA)
    trainer = training.begin()
    for _ in range(trial["steps"]):
        trainer.step()

    def objective(theta_P):
        parameters = split_parameters(theta_P.unsqueeze(0), trainer.specs)
        logits = trainer.network.logits(parameters, trainer.x_NI.unsqueeze(0), trainer.untrained)
        loss_1 = losses(trainer.plan.loss, logits, trainer.labels_N.unsqueeze(0), trainer.plan.label_smoothing)
        return loss_1.sum() + (trainer.decay_TP[0] * theta_P.square()).sum() / 2

    return torch.func.hessian(objective)(trainer.theta_TP[0]), trainer


@pytest.mark.parametrize(
    "params",
    [
        {"arch": "mlp"},
        {"arch": "rn1", "loss": "mse"},
        {"arch": "rn2", "label_smoothing": 0.1},
        {"arch": "rn1", "norm": "pre", "weight_decay_biases": 0.1},
        {"arch": "resnet_dense", "optimizer": "adam"},
    ],
    ids=lambda params: params["arch"],
)
def test_dense_hessian(params):
    trial = collapse(**params)
    hessian_PP, _ = dense_hessian(trial)
    values = torch.linalg.eigvalsh(hessian_PP)
    (row,) = last_rows([trial])
    np.testing.assert_allclose(row["hessian_eigenvalues"], values.flip(0)[:3], rtol=1e-7)
    assert row["hessian_max"] == row["hessian_eigenvalues"][0]
    assert (
        row["hessian_trace"] == pytest.approx(float(hessian_PP.trace()), rel=1e-9) and row["hessian_trace_error"] == 0
    )


def test_fixed_parameters_are_left_out():
    trial = collapse(arch="rn1", train_embedding=False)
    hessian_PP, trainer = dense_hessian(trial)
    is_trained_P = torch.cat([torch.full((spec.size,), spec.is_trained) for spec in trainer.specs])
    hessian_QQ = hessian_PP[is_trained_P][:, is_trained_P]
    (row,) = last_rows([trial])
    assert row["hessian_max"] == pytest.approx(float(torch.linalg.eigvalsh(hessian_QQ)[-1]), rel=1e-7)
    assert row["hessian_trace"] == pytest.approx(float(hessian_QQ.trace()), rel=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_quadratic_of_fixed_features(dtype):
    """With W alone trained, the squared loss has the eigenvalues of X X^T / N + lambda, each once per class."""
    pack = [
        DUFM.schema.fill(
            {"depth": 1, "num_classes": 3, "samples_per_class": 4, "width": 5, "steps": 3, "lr": 1e-9, "dtype": dtype}
            | {"weight_decay": 0.1, "weight_decay_features": 0.0, "seed": seed, "measure": HESSIAN}
        )
        for seed in range(2)
    ]
    training = DUFM.training([DUFM.read(params) for params in pack], None)
    trainer = training.begin()
    h_TND, num_features = trainer.parameters()["H_1"].double(), 12 * 5

    def product(direction_TQ):
        whole_TP = torch.cat([torch.zeros(2, num_features, dtype=torch.float64), direction_TQ], dim=1)
        return trainer.hessian_product(0, whole_TP.to(trainer.theta_TP)).double()[:, num_features:]

    starts = list(torch.randn(6, 2, 15, generator=generator(), dtype=torch.float64))
    values_TS = largest_eigenvalues(product, starts, 50)
    expected_TD = torch.linalg.eigvalsh(h_TND.mT @ h_TND / 12 + 0.1 * torch.eye(5)).flip(1)
    rtol = 1e-8 if dtype == "float64" else 1e-4
    torch.testing.assert_close(values_TS, expected_TD[:, :2].repeat_interleave(3, dim=1), rtol=rtol, atol=0)
    units = torch.eye(15, dtype=torch.float64).unsqueeze(1).expand(15, 2, 15)
    torch.testing.assert_close(trace(product, units, is_basis=True)[0], 3 * expected_TD.sum(1), rtol=rtol, atol=0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_alone_and_fused(dtype, monkeypatch):
    shared = {"arch": "rn1", "width": 20, "depth": 4, "dtype": dtype}
    trials = [collapse(**shared, seed=seed, lr=0.1 * (seed + 1), weight_decay=0.01 * seed) for seed in range(3)]
    together = last_rows(trials)
    np.testing.assert_equal([last_rows([trial])[0] for trial in trials], together)
    assert all(row["hessian_trace_error"] > 0 for row in together)
    monkeypatch.setattr("depthrate.tasks.training.weight_metrics.BASIS_NUMBERS", 1)
    np.testing.assert_equal(last_rows(trials), together)


def test_trace_of_many_parameters_within_its_error():
    trials = [collapse(arch="mlp", width=24, seed=seed) for seed in range(6)]
    for row, trial in zip(last_rows(trials), trials, strict=True):
        exact = float(dense_hessian(trial)[0].trace())
        assert abs(row["hessian_trace"] - exact) < 4 * row["hessian_trace_error"] < exact


def test_eigenvalues_of_known_matrices():
    """Multiple and negative eigenvalues, a zero matrix, a matrix with NaN, and one that needs more products."""
    basis_PP = torch.linalg.qr(torch.randn(40, 40, generator=generator(), dtype=torch.float64))[0]
    tops = ([5.0, 5.0, 4.0], [-1.0, -2.0, -2.0], [0.0] * 3, [float("nan")] * 3, [1.0, 1 - 1e-9, 1 - 2e-9])
    rest = torch.linspace(-3, -2, 37, dtype=torch.float64)
    spectra = [torch.cat([torch.tensor(top, dtype=torch.float64), rest]) for top in tops]
    spectra[2], spectra[4] = torch.zeros(40, dtype=torch.float64), torch.linspace(1 - 4e-8, 1, 40, dtype=torch.float64)
    matrices_TPP = torch.stack([(basis_PP * values) @ basis_PP.T for values in spectra])
    starts = list(torch.randn(3, 5, 40, generator=generator(), dtype=torch.float64))
    values_TS = largest_eigenvalues(lambda v: (matrices_TPP @ v.unsqueeze(2)).squeeze(2), starts, 60)
    for values_S, top in zip(values_TS, tops, strict=True):
        np.testing.assert_allclose(values_S, top, atol=1e-6)
    few_TS = largest_eigenvalues(lambda v: (matrices_TPP @ v.unsqueeze(2)).squeeze(2), starts, 2)
    assert few_TS[0].isnan().all() and not few_TS[2].isnan().any()


def test_plans_count_the_products():
    plain, of_trace, of_both = (
        collapse(arch="mlp", width=64, measure=names) for names in (None, "hessian_trace", "hessian_max, hessian_trace")
    )
    assert COLLAPSE.estimate_s(plain) < COLLAPSE.estimate_s(of_trace) < COLLAPSE.estimate_s(of_both)
    basis_bytes = 8 * 100 * COLLAPSE.pack_shape(COLLAPSE.read(of_both)).network.num_parameters
    assert COLLAPSE.memory_bytes(of_both, 3, "cpu") > COLLAPSE.memory_bytes(plain, 3, "cpu") + 3 * basis_bytes


def test_requested_groups_only():
    (row,) = last_rows([collapse(arch="mlp", measure="hessian_trace")])
    assert "hessian_max" not in row and "hessian_trace" in row
    training = training_on([collapse(arch="mlp", measure=None)], DATA)
    assert training.at_end is None


class Squares(torch.nn.Module):
    def __init__(self, square):
        super().__init__()
        self.first, self.last, self.square = torch.nn.Linear(4, 5), torch.nn.Linear(5, 3), square

    def forward(self, x):
        return self.last(self.square(self.first(x)))


class OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


def test_networks_without_second_derivatives_are_refused():
    def check(square):
        data = DataShape(num_samples=30, sample_shape=(4,), num_classes=3)
        make = functools.partial(Squares, square)
        network = ModuleNetwork(make=make, name="Net", arguments={}, data=data, patterns=("first",))
        check_products(network, data, torch.float32)

    check(torch.square)
    with pytest.raises(ParameterError, match="no second derivatives of the network: they are not symmetric"):
        check(OnceDifferentiable.apply)


def test_refusals():
    with pytest.raises(
        ParameterError, match="'product_alignment', but the layers of 't11' are not between two matrices"
    ):
        collapse(arch="t11", measure="product_alignment")
    with pytest.raises(ParameterError, match="expected singular_alignment, .*did you mean 'hessian_max'"):
        DUFM.check_trial(DUFM.schema.fill({"depth": 1, "num_classes": 2, "measure": "hessian_mx"}))


def singular(weight):
    u, s, vt = np.linalg.svd(weight, full_matrices=False)
    return u, s, vt.T


def test_alignment_equals_numpy_and_is_invariant():
    rng = np.random.default_rng(1)
    written_TDI, read_TOD = rng.normal(size=(4, 7, 5)), rng.normal(size=(4, 6, 7))
    rotation = np.linalg.qr(rng.normal(size=(7, 7)))[0]
    found = consecutive_alignment(torch.tensor(written_TDI), torch.tensor(read_TOD), 3)
    turned = consecutive_alignment(torch.tensor(rotation @ written_TDI), torch.tensor(read_TOD @ rotation.T), 3)
    for trial, (w, v) in enumerate(zip(written_TDI, read_TOD, strict=True)):
        (u, s, _), (_, t, z) = singular(w), singular(v)
        expected = {
            "singular_alignment": abs(u[:, 0] @ z[:, 0]),
            "subspace_alignment": np.linalg.norm(u[:, :3].T @ z[:, :3]) ** 2 / 3,
            "product_alignment": np.linalg.norm(v @ w) ** 2 / (s[:5] ** 2 * t[:5] ** 2).sum(),
        }
        for name, value in expected.items():
            assert float(found[name][trial]) == pytest.approx(value) == pytest.approx(float(turned[name][trial]))
            assert 0 <= value < 1


def test_degenerate_singular_values():
    """Equal first values leave the first vector open, but not the span of the first two. A rank below K leaves K open."""
    rng = np.random.default_rng(2)
    u, v = (torch.tensor(np.linalg.qr(rng.normal(size=(6, 6)))[0]) for _ in range(2))
    weight = u @ torch.diag(torch.tensor([2.0, 2.0, 1.0, 0, 0, 0], dtype=torch.float64)) @ v.T
    for num_vectors, is_defined in ((1, False), (2, True), (3, True), (4, False), (6, False)):
        found = consecutive_alignment(
            weight.unsqueeze(0), (v @ weight.T @ weight @ u.T @ u @ u.T).unsqueeze(0), num_vectors
        )
        assert found["singular_alignment"].isnan()
        assert bool(found["subspace_alignment"].isnan()) is not is_defined
    aligned = consecutive_alignment(weight.unsqueeze(0), weight.T.unsqueeze(0), 2)
    assert (
        float(aligned["subspace_alignment"]) == pytest.approx(1) == pytest.approx(float(aligned["product_alignment"]))
    )
    undefined = consecutive_alignment(torch.zeros(1, 3, 3), torch.full((1, 3, 3), float("nan")), 2)
    assert all(value.isnan().all() for value in undefined.values())


def test_balanced_networks_are_aligned():
    names = ", ".join(ALIGNMENT_NAMES)
    shape = {"depth": 3, "num_classes": 3, "samples_per_class": 2, "width": 6, "activation": "none", "dtype": "float64"}
    params = DUFM.schema.fill(shape | {"init": "balanced", "steps": 1, "lr": 1e-9, "measure": names})
    (result,) = DUFM.run([params], Context(ids_of([params])))
    for row in result.tables["metrics"]:
        assert [row[name] for name in ALIGNMENT_NAMES] == pytest.approx([1, 1, 1], abs=1e-6)


@pytest.mark.parametrize(
    ("arch", "pairs"),
    [
        ("mlp", [("W_1", "W_2"), ("W_2", "W_3"), ("W_3", "W_L")]),
        ("rn1", [("W_0", "W_1"), ("W_1", "W_2"), ("W_2", "W_L")]),
        ("rn2", [("W_0", "W_1,1"), ("W_1,2", "W_2,1"), ("W_2,2", "W_L")]),
    ],
)
def test_rows_of_networks(arch, pairs):
    trials = [collapse(arch=arch, depth=3, seed=seed, measure="product_alignment") for seed in range(2)]
    training = training_on(trials, DATA)
    trainer = training.begin()
    trainer.step()
    weights = trainer.parameters()
    for position, rows in enumerate(training.measure(trainer, range(2), 1)):
        found = [row["product_alignment"] for row in rows if row["layer"]]
        expected = [
            consecutive_alignment(weights[w][position : position + 1], weights[r][position : position + 1], 3)
            for w, r in pairs
        ]
        assert found == [float(values["product_alignment"]) for values in expected]
        assert all(a != b for a, b in itertools.pairwise(found))
        assert "product_alignment" not in rows[0] and "singular_alignment" not in rows[1]
