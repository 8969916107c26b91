"""`figures:` in a sweep: read, written back, and refused with what is allowed."""

import pytest

from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.load import sweep_of_spec
from depthrate.sweeps.spec import check_figures
from depthrate.tasks.figure_request import FigureRequest
from depthrate.tasks.function_task import task
from depthrate.tasks.metric import Metric

CURVE = {"kind": "curve", "metric": "nc1", "x": "depth", "by": ["lr"], "layer": -2, "lines": {"theory": "1 / depth"}}
MATRIX = {"kind": "matrix", "metric": "class_gram", "order": "singular_values", "lowest": "objective"}
SHARE = {"kind": "share", "condition": "rank < 3", "x": "width", "where": "depth > 2", "x_axis": "log"}
PATH = {"kind": "path", "metric": "nc1", "x": "relative_position", "lines": {"predicted": "nc1_geodesic"}, "by": ["*"]}
HEAT = {"kind": "map", "metric": "nc1", "x": "step", "y": "layer", "by": ["*"], "colours": "log"}
VERDICT = {
    "kind": "verdict",
    "metric": "monotone",
    "words": ["falls", "rises"],
    "columns": ["nc1_rise"],
    "note": "The rule.",
}
SCATTER = {"kind": "scatter", "features": "sample", "x": "First", "label": "class"}
ALONG = {"kind": "curve", "metric": "nc1", "x": "nc3", "along": "depth"}
SPEC = {"name": "s", "task": "collapse", "params": {"arch": "rn1"}, "grid": {"depth": [2, 3]}}


def sweep(*figures):
    return sweep_of_spec({**SPEC, "figures": list(figures)})


def test_figures_are_read_and_written_back():
    figures = [CURVE, MATRIX, SHARE, PATH, HEAT, VERDICT, SCATTER, ALONG]
    made = sweep(*figures)
    assert made.spec()["figures"] == figures and sweep_of_spec(made.spec()) == made
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
        ({"kind": "verdict", "metric": "monotone"}, "words is missing. A verdict needs metric, words"),
        (VERDICT | {"words": "falls"}, "words is the string 'falls', expected a list of strings"),
        (SCATTER | {"lines": {}}, "unknown key 'lines'.*kind scatter"),
        (HEAT | {"colours": "red"}, "colours is the string 'red', expected log or linear"),
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
        (
            PATH | {"x": "relative_positon"},
            "unknown metric 'relative_positon' in figures .did you mean 'relative_position'",
        ),
        (ALONG | {"along": "deph"}, "unknown parameter 'deph' in figures .did you mean 'depth'"),
        (VERDICT | {"columns": ["nc1_rises"]}, "unknown metric 'nc1_rises' in figures .did you mean 'nc1_rise'"),
        (MATRIX | {"metric": "nc1"}, "unknown matrix 'nc1' in figures"),
    ],
)
def test_undeclared_columns_are_refused(figure, words):
    with pytest.raises(SweepError, match=words):
        check_sweep(sweep(figure))


@pytest.mark.parametrize(
    ("request_of_task", "words"),
    [
        (
            FigureRequest(kind="curve", metric="spread", x="dept"),
            "unknown parameter 'dept' in figures of the task .*:spread",
        ),
        (FigureRequest(kind="curve", metric="spred", x="depth"), "unknown metric 'spred' in figures of the task"),
        (FigureRequest(kind="curve", metric="spread"), "x is missing. A curve needs metric, x"),
        (FigureRequest(kind="curve", metric="spread", x="depth", by="depth"), "expected a list of parameter names"),
        (FigureRequest(kind="spread", metric="spread"), "kind is the string 'spread', expected one of curve"),
    ],
)
def test_figures_of_a_task_are_checked_alike(request_of_task, words):
    @task(measurements=[Metric("spread")], figures=[request_of_task])
    def spread(*, depth: int):
        return {}

    with pytest.raises(SweepError, match=words):
        check_figures(sweep(), spread.__depthrate_task__)
