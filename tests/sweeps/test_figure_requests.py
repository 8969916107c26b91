"""`figures:` in a sweep: read, written back, and refused with what is allowed."""

import pytest

from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.load import sweep_of_spec

CURVE = {"kind": "curve", "metric": "nc1", "x": "depth", "by": ["lr"], "layer": -2, "lines": {"theory": "1 / depth"}}
MATRIX = {"kind": "matrix", "metric": "class_gram", "order": "singular_values", "lowest": "objective"}
SHARE = {"kind": "share", "condition": "rank < 3", "x": "width", "where": "depth > 2", "x_axis": "log"}
SPEC = {"name": "s", "task": "collapse", "params": {"arch": "rn1"}, "grid": {"depth": [2, 3]}}


def sweep(*figures):
    return sweep_of_spec({**SPEC, "figures": list(figures)})


def test_figures_are_read_and_written_back():
    made = sweep(CURVE, MATRIX, SHARE)
    assert made.spec()["figures"] == [CURVE, MATRIX, SHARE] and sweep_of_spec(made.spec()) == made
    assert made.figures[0].by == ("lr",) and made.figures[0].layer == -2 and made.figures[2].where == "depth > 2"
    check_sweep(made)
    check_sweep(sweep(CURVE | {"metric": "nc1 / nc3"}))


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ({"metric": "nc1"}, "kind is missing, expected one of curve, share, map"),
        ({"kind": "curv", "metric": "nc1"}, "did you mean 'curve'"),
        ({"kind": "curve", "metric": "nc1"}, "x is missing. A curve needs metric, x"),
        ({"kind": "share", "condition": "rank < 3", "x": "width", "lines": {}}, "unknown key 'lines'.*kind share"),
        (CURVE | {"by": "lr"}, "by is the string 'lr', expected a list of parameter names"),
        (CURVE | {"layer": 1.5}, "layer is the value 1.5, expected an int"),
        (CURVE | {"lines": ["a"]}, "lines is a list, expected a mapping from name to SQL expression"),
        (CURVE | {"x_axis": "cubic"}, "x_axis is the string 'cubic', expected log or linear"),
    ],
)
def test_what_has_no_meaning_is_refused(figure, words):
    with pytest.raises(SweepError, match=words):
        sweep(figure)


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        (CURVE | {"x": "dept"}, "unknown parameter 'dept' in figures .did you mean 'depth'"),
        (CURVE | {"by": ["sed"]}, "unknown parameter 'sed'"),
        (CURVE | {"metric": "nc11"}, "unknown metric 'nc11' in figures .did you mean 'nc1'"),
        (MATRIX | {"metric": "nc1"}, "unknown matrix 'nc1' in figures"),
    ],
)
def test_undeclared_columns_are_refused(figure, words):
    with pytest.raises(SweepError, match=words):
        check_sweep(sweep(figure))
