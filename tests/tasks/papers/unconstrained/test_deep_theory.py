"""The closed forms against the objective at the explicit matrices, and against the numbers on record."""

import itertools

import numpy as np
import pytest

from depthrate.tasks.papers.unconstrained.deep_solutions import dnc_solution, repeated, srg_solution
from depthrate.tasks.papers.unconstrained.strongly_regular import (
    TriangularGraph,
    graph_order,
    triangular_classes,
    triangular_root,
)
from depthrate.tasks.papers.unconstrained.theory import (
    ZERO_LOSS,
    DufmProblem,
    best_known,
    cut_graph_branch,
    dnc_branch,
    dnc_loss,
    srg_branch,
    srg_loss,
)
from tests.support.deep_objective import norm, objective


def limit_ratio(r, depth):
    """Return L_SRG / L_DNC for K = r(r-1)/2 as all weight decays go to zero together, independent of n and their proportions.

    In this limit both objectives are B q^{-L} + C q, whose minimum is proportional to B^{1/(L+1)} C^{L/(L+1)}.
    """
    problem = DufmProblem(r * (r - 1) // 2, 1, (1.0,) * depth, 1.0)

    def size(branch):
        residual = sum(number / eigenvalue for number, eigenvalue in branch.spectrum) / branch.gain
        return (residual * branch.slope**depth) ** (1 / (depth + 1))

    return size(srg_branch(problem, r)) / size(dnc_branch(problem))


def equal_decays(num_classes, depth, decay=0.004, samples_per_class=1):
    return DufmProblem(num_classes, samples_per_class, (decay,) * depth, decay)


@pytest.mark.parametrize("seed", range(3))
def test_closed_forms_equal_the_objective(seed):
    rng = np.random.default_rng(seed)
    for r, depth in itertools.product(range(4, 10), range(3, 7)):
        classes, samples = r * (r - 1) // 2, int(rng.integers(1, 6))
        decays = tuple(10 ** rng.uniform(-5, -3, depth))
        problem = DufmProblem(classes, samples, decays, 10 ** rng.uniform(-5, -3))
        for solution, loss in ((dnc_solution, dnc_loss), (srg_solution, srg_loss)):
            found = repeated(solution(problem, classes + int(rng.integers(0, 4))), samples)
            assert objective(problem, found)[0] == pytest.approx(loss(problem), rel=1e-12)


@pytest.mark.parametrize(("num_classes", "depth"), [(2, 1), (2, 2), (6, 3), (10, 4), (10, 5), (15, 6)])
def test_the_gradient_is_zero_at_deep_neural_collapse(num_classes, depth):
    problem = equal_decays(num_classes, depth, samples_per_class=3)
    assert dnc_loss(problem) < ZERO_LOSS
    assert norm(objective(problem, repeated(dnc_solution(problem, num_classes + 2), 3))[1]) < 1e-10


@pytest.mark.parametrize("decay", [3e-3, 1e-4])
@pytest.mark.parametrize(("r", "depth"), [(5, 3), (5, 4), (5, 6), (6, 3), (6, 4), (6, 5), (7, 3)])
def test_graph_gradient_vanishes(r, depth, decay):
    problem = equal_decays(r * (r - 1) // 2, depth, decay)
    assert norm(objective(problem, srg_solution(problem, r * (r - 1) // 2))[1]) < 1e-10


@pytest.mark.parametrize(("r", "depth"), [(4, 3), (4, 5), (7, 4), (8, 3), (9, 4)])
def test_other_class_counts_are_not_stationary(r, depth):
    """What is left of the gradient goes with lambda, so it is no rounding: better solutions are nearby."""
    classes = r * (r - 1) // 2
    for decay in (1e-3, 1e-5):
        problem = equal_decays(classes, depth, decay)
        assert 0.1 < norm(objective(problem, srg_solution(problem, classes))[1]) / decay < 10


def test_the_gradient_is_that_of_differences():
    rng = np.random.default_rng(0)
    problem = DufmProblem(3, 2, (0.1, 0.2, 0.3), 0.4)
    start = repeated(dnc_solution(DufmProblem(3, 2, (1e-3,) * 3, 1e-3), 4), 2)
    matrices = [matrix + 0.3 * rng.normal(size=matrix.shape) for matrix in (start.h_ND, *start.weights)]
    moves = [rng.normal(size=matrix.shape) for matrix in matrices]

    def value(t):
        h, *weights = (matrix + t * move for matrix, move in zip(matrices, moves, strict=True))
        return objective(problem, type(start)(h, weights))

    gradient = value(0.0)[1]
    slope = sum((g * move).sum() for g, move in zip((gradient.h_ND, *gradient.weights), moves, strict=True))
    assert (value(1e-6)[0] - value(-1e-6)[0]) / 2e-6 == pytest.approx(slope, rel=1e-6)


def test_the_setting_of_figure_2():
    problem = equal_decays(10, 4, samples_per_class=50)
    assert srg_loss(problem) == pytest.approx(0.174826022672, abs=5e-13)
    assert dnc_loss(problem) == pytest.approx(0.214623323978, abs=5e-13)
    assert best_known(problem) == srg_loss(problem) and best_known(problem, relu=False) == dnc_loss(problem)


@pytest.mark.parametrize(
    ("samples", "num_classes", "ratios"),
    [
        (1, 6, (1.0557, 0.9634, 0.9063)),
        (1, 10, (0.9206, 0.8158, 0.7524)),
        (1, 15, (0.9213, 0.7818, 0.7002)),
        (1, 21, (0.9307, 0.7615, 0.6651)),
        (1, 28, (0.9385, 0.7453, 0.6374)),
        (50, 10, (0.9154, 0.8146, 0.7521)),
        (50, 15, (0.9097, 0.7796, 0.6999)),
    ],
)
def test_ratios_on_record(samples, num_classes, ratios):
    problems = [equal_decays(num_classes, depth, samples_per_class=samples) for depth in (3, 4, 5)]
    assert tuple(round(srg_loss(problem) / dnc_loss(problem), 4) for problem in problems) == ratios


@pytest.mark.parametrize(
    ("r", "ratios"),
    [
        (4, (1.0561, 0.9633, 0.9060)),
        (5, (0.9234, 0.8168, 0.7527)),
        (6, (0.9268, 0.7834, 0.7004)),
        (8, (0.9476, 0.7456, 0.6354)),
        (12, (0.9686, 0.6932, 0.5546)),
    ],
)
def test_limits_of_the_ratio(r, ratios):
    assert tuple(round(limit_ratio(r, depth), 4) for depth in (3, 4, 5)) == ratios
    tiny = equal_decays(r * (r - 1) // 2, 4, decay=1e-9, samples_per_class=7)
    assert srg_loss(tiny) / dnc_loss(tiny) == pytest.approx(limit_ratio(r, 4), rel=1e-3)


@pytest.mark.parametrize(("depth", "rate"), [(3, 0.0), (4, -1 / 10), (5, -1 / 6), (6, -3 / 14), (7, -1 / 4)])
def test_ratio_falls_as_theorem_5(depth, rate):
    """At L = 3 there is no rate: the ratio rises from K = 10 on, towards 1."""
    sizes = (30, 1000, 3000)  # K = 435 to 4,498,500
    ratios = [limit_ratio(r, depth) for r in sizes]
    logs = np.diff(np.log(ratios)) / np.diff(np.log([r * (r - 1) / 2 for r in sizes]))
    assert abs(logs[1] - rate) < 2e-4 and abs(logs[1] - rate) < abs(logs[0] - rate)
    assert depth > 3 or limit_ratio(5, 3) < ratios[0] < ratios[1] < ratios[2] < 1


def test_large_graph_equals_its_matrices():
    problem = equal_decays(435, 4, decay=1e-5)
    assert objective(problem, srg_solution(problem, 435))[0] == pytest.approx(srg_loss(problem), rel=1e-12)
    assert srg_loss(problem) / dnc_loss(problem) == pytest.approx(limit_ratio(30, 4), rel=1e-3)


def test_complete_cut_graph():
    for r, depth in ((4, 3), (5, 4), (6, 5)):
        problem = equal_decays(r * (r - 1) // 2, depth)
        assert cut_graph_branch(problem, r).minimum()[1] == pytest.approx(
            srg_branch(problem, r).minimum()[1], rel=1e-12
        )


def test_other_numbers_of_classes_have_constructions_too():
    for classes in (7, 8, 9, 11, 12, 13, 14):
        problem = equal_decays(classes, 4, decay=5e-4)
        assert srg_loss(problem) < dnc_loss(problem), "the paper's theorem: from K = 6 on at L = 4"
    assert srg_loss(equal_decays(5, 4)) is None and srg_loss(equal_decays(10, 2)) is None


def test_too_much_regularisation_leaves_zero():
    assert best_known(equal_decays(10, 4, decay=0.2)) == ZERO_LOSS == dnc_loss(equal_decays(10, 4, decay=0.2))


def test_which_numbers_of_classes_have_the_graph():
    assert [k for k in range(2, 40) if triangular_root(k)] == [6, 10, 15, 21, 28, 36]
    assert triangular_classes(11) == "6, 10, 15, 21, 28"


@pytest.mark.parametrize("r", range(4, 13))
def test_graph_is_recognised_in_any_order(r):
    graph, rng = TriangularGraph(r), np.random.default_rng(r)
    adjacency = graph.adjacency_KK.astype(int)
    common = adjacency @ adjacency
    assert (np.diag(common) == 2 * (r - 2)).all() and set(common[graph.adjacency_KK]) == {r - 2}
    shuffled = rng.permutation(graph.num_classes)
    gram = 3 * graph.gram_KK()[np.ix_(shuffled, shuffled)] + 0.05 * rng.uniform(-1, 1, [graph.num_classes] * 2)
    order = graph_order(gram, 0.1)
    assert sorted(order) == list(range(graph.num_classes))
    assert np.abs(gram[np.ix_(order, order)] / 3 - graph.gram_KK()).max() < 0.1
    assert graph_order(np.eye(graph.num_classes), 0.1) is None
    gram[0, 1] = gram[1, 0] = 1.5 - gram[0, 1]  # an edge more or less
    assert graph_order(gram, 0.1) is None


def test_the_graph_needs_four_vertices():
    with pytest.raises(ValueError, match="r is 3, expected at least 4"):
        TriangularGraph(3)
    with pytest.raises(ValueError, match="num_classes is 11. The graph exists for .* 6, 10, 15"):
        srg_solution(equal_decays(11, 4), 20)
    with pytest.raises(ValueError, match="width is 9, expected at least 10"):
        srg_solution(equal_decays(10, 4), 9)
