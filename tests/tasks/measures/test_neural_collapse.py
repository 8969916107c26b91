"""Every collapse metric equals its definition and has its invariances."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from depthrate.tasks.measures.alignment import feature_alignment, weight_alignment
from depthrate.tasks.measures.neural_collapse import class_collapse, class_moments, spectrum

RANK_TOL = 1e-2
BALANCED, UNBALANCED = [7, 7, 7, 7], [3, 9, 1, 5]
FEATURES_ONLY = ["nc1", "nc1_pinv", "pfc2", "ncc_accuracy"]


def measured(h_ND, counts, w_KD, rank_tol=RANK_TOL):
    """Measure every column of one trial, as numpy."""
    h_1ND, counts_K = torch.as_tensor(h_ND).unsqueeze(0), torch.as_tensor(counts)
    columns = measured_trials(h_1ND, counts_K, torch.as_tensor(w_KD).unsqueeze(0), rank_tol)
    return {name: value.item() if value.ndim == 1 else value[0].numpy() for name, value in columns.items()}


def measured_trials(h_TND, counts_K, w_TKD, rank_tol=RANK_TOL):
    """Measure every column of T trials, as tensors."""
    moments = class_moments(h_TND, counts_K)
    columns = class_collapse(moments) | spectrum(moments["means"], rank_tol)
    return columns | weight_alignment(w_TKD) | feature_alignment(h_TND, counts_K, w_TKD)


def random_layer(counts, dim=6, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    means_KD = rng.normal(size=(len(counts), dim)) + 0.5
    h_ND = np.repeat(means_KD, counts, axis=0) + spread * rng.normal(size=(sum(counts), dim))
    return h_ND, rng.normal(size=(len(counts), dim))


def collapsed_layer(num_classes=4, per_class=5, dim=6, noise=0.0, offset=0.0):
    """Build features on a rotated simplex and a W proportional to the centred means."""
    rng = np.random.default_rng(1)
    basis_DK = np.linalg.qr(rng.normal(size=(dim, num_classes)))[0]
    means_KD = (np.eye(num_classes) - 1 / num_classes) @ basis_DK.T
    deviations_KnD = rng.normal(size=(num_classes, per_class, dim)) * noise
    deviations_KnD -= deviations_KnD.mean(1, keepdims=True)
    return (means_KD[:, None] + deviations_KnD + offset).reshape(-1, dim), 3.7 * means_KD


def naive(h_ND, counts, w_KD):
    """Apply the definitions sample by sample: Sigma_W is a mean over samples, mu_G and Sigma_B are means over classes."""
    num_samples, num_classes, dim = len(h_ND), len(counts), h_ND.shape[1]
    labels = [k for k, count in enumerate(counts) for _ in range(count)]
    means = [np.mean([x for x, y in zip(h_ND, labels, strict=True) if y == k], axis=0) for k in range(num_classes)]
    mu_g = np.mean(means, axis=0)
    sigma_w, sigma_b = np.zeros((dim, dim)), np.zeros((dim, dim))
    cosines, hits = [], 0
    for x, k in zip(h_ND, labels, strict=True):
        sigma_w += np.outer(x - means[k], x - means[k]) / num_samples
        cosines.append(x @ w_KD[k] / np.linalg.norm(x) / np.linalg.norm(w_KD[k]))
        hits += int(np.argmin([np.linalg.norm(x - mu) for mu in means]) == k)
    for mean in means:
        sigma_b += np.outer(mean - mu_g, mean - mu_g) / num_classes
    ht = np.array(means).T - mu_g[:, None]
    m = np.array(means).T
    s = np.linalg.svd(m)[1]
    e = np.eye(num_classes) - np.ones((num_classes, num_classes)) / num_classes
    return {
        "nc1": np.trace(sigma_w) / np.trace(sigma_b),
        "nc1_pinv": np.trace(sigma_w @ np.linalg.pinv(sigma_b, rcond=1e-10)) / num_classes,
        "pfc2": np.linalg.norm(ht.T @ ht / np.linalg.norm(ht.T @ ht) - e / np.sqrt(num_classes - 1)),
        "ncc_accuracy": hits / num_samples,
        "nc2a": closest_multiple(w_KD @ w_KD.T, e),
        "nc2b": closest_multiple(w_KD @ w_KD.T, np.eye(num_classes)),
        "nc3": 1 - np.mean(cosines),
        "rank": sum(value > RANK_TOL * s[0] for value in s),
        "stable_rank": (s**2).sum() / s[0] ** 2,
        "condition_number": s[0] / s[-1],
        "singular_values": s,
        "class_gram": m.T @ m,
    }


def closest_multiple(gram, basis):
    """Minimise ||gram - c basis|| / ||gram|| over c >= 0 by search."""
    minimum = minimize_scalar(lambda c: np.sum((gram - c * basis) ** 2), bounds=(0, 1e3), options={"xatol": 1e-12})
    return np.sqrt(minimum.fun) / np.linalg.norm(gram)


@pytest.mark.parametrize("counts", [BALANCED, UNBALANCED], ids=["balanced", "unbalanced"])
@pytest.mark.parametrize("dim", [2, 6, 40])
def test_every_column_equals_its_definition(counts, dim):
    h_ND, w_KD = random_layer(counts, dim)
    expected = naive(h_ND, counts, w_KD)
    metrics = measured(h_ND, counts, w_KD)
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        rtol = 1e-8 if name in ("nc2a", "nc2b") else 1e-12
        np.testing.assert_allclose(metrics[name], value, rtol=rtol, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("counts", [[5] * 4, [2, 40, 8, 8, 60]])
def test_collapsed_simplex_measures_zero(counts):
    means_KD, w_KD = collapsed_layer(len(counts), 1)
    metrics = measured(np.repeat(means_KD, counts, axis=0), counts, w_KD)
    for name in ("nc1", "nc1_pinv", "nc2a", "nc3", "pfc2"):
        assert metrics[name] == pytest.approx(0, abs=1e-14), name
    assert metrics["ncc_accuracy"] == 1


def test_orthogonal_weights_are_a_basis_not_a_simplex():
    metrics = measured(*[collapsed_layer()[0], [5] * 4, np.eye(4, 6)])
    assert metrics["nc2b"] == pytest.approx(0, abs=1e-14) and metrics["nc2a"] > 0.1


@pytest.mark.parametrize("counts", [BALANCED, UNBALANCED], ids=["balanced", "unbalanced"])
@pytest.mark.parametrize("change", ["rotation", "shift", "scale"])
def test_geometry_ignores_rotation_shift_and_scale(counts, change):
    h_ND, w_KD = random_layer(counts)
    rng = np.random.default_rng(3)
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    changed_ND = {"rotation": h_ND @ rotation, "shift": h_ND + 10 * rng.normal(size=6), "scale": 0.01 * h_ND}[change]
    before, after = measured(h_ND, counts, w_KD), measured(changed_ND, counts, w_KD)
    assert [after[name] for name in FEATURES_ONLY] == pytest.approx([before[name] for name in FEATURES_ONLY], rel=1e-9)


def test_permuting_classes_and_samples_changes_no_column():
    h_ND, w_KD = random_layer(UNBALANCED)
    rng = np.random.default_rng(4)
    order = [2, 0, 3, 1]
    segments = np.split(h_ND, np.cumsum(UNBALANCED)[:-1])
    permuted_ND = np.concatenate([rng.permutation(segments[k]) for k in order])
    before = measured(h_ND, UNBALANCED, w_KD)
    after = measured(permuted_ND, [UNBALANCED[k] for k in order], w_KD[order])
    before["class_gram"] = before["class_gram"][np.ix_(order, order)]
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-10, atol=1e-13, err_msg=name)


def test_gaussian_noise_has_the_known_nc1():
    n, num_classes = 50, 10
    h_ND = np.random.default_rng(5).normal(size=(n * num_classes, 4000))
    h_1ND, counts_K = torch.from_numpy(h_ND[None]), torch.full((num_classes,), n)
    nc1 = class_collapse(class_moments(h_1ND, counts_K))["nc1"].item()
    assert nc1 == pytest.approx((n - 1) * num_classes / (num_classes - 1), rel=0.03)  # 54.4


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_nc1_is_accurate_near_collapse(offset):
    num_classes, per_class, dim = 4, 50, 6
    h_ND, w_KD = collapsed_layer(num_classes, per_class, dim, noise=1.0)
    clean_ND, _ = collapsed_layer(num_classes, per_class, dim)
    deviations_ND = h_ND - clean_ND
    between = (num_classes - 1) / num_classes  # tr Sigma_B of the simplex: ||e_k - 1/K||^2 = (K-1)/K for each class
    deviations_ND *= np.sqrt(1e-12 * between / (deviations_ND**2).sum(1).mean())
    metrics = measured(clean_ND + deviations_ND + offset, [per_class] * num_classes, w_KD)
    assert metrics["nc1"] == pytest.approx(1e-12, rel=1e-3)
    assert metrics["nc1_pinv"] == pytest.approx(naive_pinv(clean_ND, deviations_ND, num_classes), rel=1e-3)


def naive_pinv(clean_ND, deviations_ND, num_classes):
    """Compute nc1_pinv from separate means and deviations, so that nothing cancels."""
    sigma_w, sigma_b = (x.T @ x / len(x) for x in (deviations_ND, clean_ND))
    return np.trace(sigma_w @ np.linalg.pinv(sigma_b, rcond=1e-10)) / num_classes


def test_nc3_resolves_what_float32_cannot():
    h_ND, w_KD = collapsed_layer()
    tilted_ND = h_ND + 1e-6 * np.linalg.norm(h_ND, axis=1, keepdims=True) * np.linalg.svd(h_ND)[2][-1]
    assert measured(tilted_ND, [5] * 4, w_KD)["nc3"] == pytest.approx(0.5e-12, rel=1e-3)  # 1 - cos(t) = t^2 / 2


@pytest.mark.parametrize("seed", range(3))
def test_nc2a_is_a_function_of_the_chord_distance(seed):
    h_ND, w_KD = random_layer(BALANCED, seed=seed)
    gram, e = w_KD @ w_KD.T, np.eye(4) - 1 / 4
    z = np.linalg.norm(gram / np.linalg.norm(gram) - e / np.linalg.norm(e))
    assert measured(h_ND, BALANCED, w_KD)["nc2a"] == pytest.approx(z * np.sqrt(1 - z**2 / 4), rel=1e-12)


@pytest.mark.parametrize(("tol", "rank"), [(0.5, 1), (0.05, 2), (1e-3, 3), (0.0, 3)])
def test_rank_counts_singular_values_above_the_tolerance(tol, rank):
    means_KD = np.diag([1.0, 0.1, 0.01])
    assert measured(means_KD, [1, 1, 1], means_KD, rank_tol=tol)["rank"] == rank


@pytest.mark.parametrize("smallest", [1e-3, 1e-10])
def test_condition_number_sees_small_singular_values(smallest):
    means_KD = np.diag([1.0, 0.1, smallest])
    assert measured(means_KD, [1, 1, 1], means_KD)["condition_number"] == pytest.approx(1 / smallest)


def test_tiny_singular_values_are_zero():
    means_1KD = torch.diag(torch.tensor([1.0, 0.1, 1e-10], dtype=torch.float64))[None]
    assert torch.isinf(spectrum(means_1KD, RANK_TOL, torch.float32)["condition_number"]).all()
    assert torch.isfinite(spectrum(means_1KD, RANK_TOL)["condition_number"]).all()


def test_undefined_is_not_a_number():
    metrics = measured(np.ones((4, 3)), [2, 2], np.zeros((2, 3)))
    assert not any(np.isfinite(metrics[n]) for n in ("nc1", "nc1_pinv", "pfc2", "nc2a", "nc3", "condition_number"))


@pytest.mark.parametrize("largest", [1e200, np.inf])
def test_unsquarable_features_are_measured(largest):
    """torch's decompositions raise on non-finite numbers."""
    h_ND, w_KD = random_layer(UNBALANCED)
    alone = measured(h_ND, UNBALANCED, w_KD)
    huge_ND = h_ND.copy()
    huge_ND[0] = largest
    h_2ND, w_2KD = (torch.from_numpy(np.stack(pair)) for pair in ((huge_ND, h_ND), (w_KD, w_KD)))
    metrics = measured_trials(h_2ND, torch.tensor(UNBALANCED), w_2KD)
    assert metrics["nc1_pinv"][0].isnan() and metrics["nc1_pinv"][1] == pytest.approx(alone["nc1_pinv"], rel=1e-12)
    assert metrics["rank"][0].isfinite() == np.isfinite(largest) and metrics["rank"][1] == alone["rank"]


def test_trials_are_measured_independently():
    layers = [random_layer(UNBALANCED, seed=seed) for seed in range(3)]
    h_TND = torch.from_numpy(np.stack([h for h, _ in layers]))
    w_TKD = torch.from_numpy(np.stack([w for _, w in layers]))
    together = measured_trials(h_TND, torch.tensor(UNBALANCED), w_TKD)
    for trial, (h_ND, w_KD) in enumerate(layers):
        alone = measured(h_ND, UNBALANCED, w_KD)
        for name, value in together.items():
            np.testing.assert_allclose(value[trial].numpy(), alone[name], rtol=1e-12, err_msg=name)
