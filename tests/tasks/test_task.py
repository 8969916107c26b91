"""Tasks: a user's own function becomes one, is found by name, and runs a pack."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from depthrate.tasks.function_task import task
from depthrate.tasks.interface import Interrupted, TaskError
from depthrate.tasks.loading import absolute_task_name, load_task
from depthrate.tasks.parameters import ParameterError

POWER_LAW = """
import depthrate

@depthrate.task(version=3)
def power_law(*, depth: int, exponent: float = 0.5, seed: int = 0, context):
    "One trial."
    return {"metrics": [{"step": 0, "layer": depth, "nc1": depth**-exponent}]}

def plain(*, depth: int):
    return {}
"""


@dataclass
class Context:
    """Remembers which trial it was narrowed to, and stops before the given trial."""

    stop_before: int = 99
    narrowed: list = field(default_factory=list)

    def should_stop(self):
        return len(self.narrowed) >= self.stop_before

    def for_trial(self, index):
        self.narrowed.append(index)
        return self


@pytest.fixture
def task_file(tmp_path):
    path = tmp_path / "my_laws.py"
    path.write_text(POWER_LAW)
    return path


@pytest.mark.parametrize("form", ["./my_laws.py:power_law", "my_laws.py:power_law", "{folder}/my_laws.py:power_law"])
def test_a_users_file_is_loaded(task_file, form):
    loaded = load_task(form.format(folder=task_file.parent), task_file.parent)
    assert (loaded.name, loaded.version, loaded.fused, loaded.doc) == ("my_laws:power_law", 3, False, "One trial.")
    assert list(loaded.schema) == ["depth", "exponent", "seed"]


def test_a_module_is_loaded(task_file, monkeypatch):
    monkeypatch.syspath_prepend(task_file.parent)
    assert load_task("my_laws:power_law").version == 3


def test_only_relative_files_become_absolute():
    folder = Path("/work/sweeps")
    assert absolute_task_name("./law.py:f", folder) == "/work/sweeps/law.py:f"
    assert absolute_task_name("/abs/law.py:f", folder) == "/abs/law.py:f"
    assert absolute_task_name("package.module:f", folder) == "package.module:f"
    assert absolute_task_name("collapse", folder) == "collapse"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("colapse", ["'colapse'", "did you mean 'collapse'", "./my_task.py:function"]),
        ("./nothing.py:f", ["nothing.py does not exist", "relative to the sweep file"]),
        ("my_laws.py:nothing", ["has no function 'nothing'", "power_law"]),
        ("my_laws.py:plain", ["@depthrate.task", "'plain'", "power_law"]),
        ("no.such.module:f", ["'no.such.module' cannot be imported"]),
        ("broken.py:f", ["broken.py cannot be imported", "ZeroDivisionError"]),
        ("syntax.py:f", ["syntax.py cannot be imported", "SyntaxError"]),
        ("broken:f", ["'broken' cannot be imported", "ZeroDivisionError"]),
        (":f", ["':f'"]),
        (".relative:f", [".relative"]),
    ],
)
def test_what_cannot_be_loaded_is_explained(task_file, monkeypatch, name, parts):
    (task_file.parent / "broken.py").write_text("1 / 0")
    (task_file.parent / "syntax.py").write_text("def f(:")
    monkeypatch.syspath_prepend(task_file.parent)
    with pytest.raises(TaskError) as caught:
        load_task(name, task_file.parent)
    for part in parts:
        assert part in str(caught.value)


def test_sequential_trials_have_own_contexts():
    @task()
    def double(*, depth: int, seed: int = 0, context):
        return {"metrics": [{"layer": depth, "seen": list(context.narrowed)}]}

    trials = [{"depth": 2, "seed": 0}, {"depth": 3, "seed": 1}]
    results = list(double.__depthrate_task__.run(trials, Context()))
    assert [(r.index, r.status, r.tables["metrics"][0]) for r in results] == [
        (0, "ok", {"layer": 2, "seen": [0]}),
        (1, "ok", {"layer": 3, "seen": [0, 1]}),
    ]


def test_results_stream_and_stop_between_trials():
    calls = []

    @task()
    def count(*, seed: int = 0):
        calls.append(seed)
        return {}

    results = count.__depthrate_task__.run([{"seed": s} for s in range(5)], Context(stop_before=2))
    assert next(results).index == 0 and calls == [0] and next(results).index == 1
    assert count(seed=7) == {}, "a marked function can still be called"
    with pytest.raises(Interrupted):
        next(results)


def test_a_fused_task_gets_lists_for_what_varies():
    @task(version=2, fusible=["seed", "lr"])
    def pack(*, depth: int, lr: float = 0.1, seed: int = 0, context):
        assert isinstance(context, Context)
        return [{"metrics": [{"value": depth * rate + s}]} for rate, s in zip(lr, seed, strict=True)]

    fused = pack.__depthrate_task__
    results = list(fused.run([{"depth": 2, "lr": 0.5, "seed": 0}, {"depth": 2, "lr": 2.0, "seed": 1}], Context()))
    assert fused.fused and fused.version == 2 and fused.schema.fusible == {"lr", "seed"}
    assert [(r.index, r.tables["metrics"][0]["value"]) for r in results] == [(0, 1.0), (1, 5.0)]


def test_result_count_must_match():
    @task(fusible=["seed"])
    def short(*, seed: int = 0):
        return [{}]

    with pytest.raises(TaskError, match="returned 1 results for a pack of 2 trials"):
        list(short.__depthrate_task__.run([{"seed": 0}, {"seed": 1}], Context()))


@pytest.mark.parametrize("returned", [None, 3, iter([{}, {}]), {"a": 1, "b": 2}])
def test_a_fused_task_must_return_a_list(returned):
    @task(fusible=["seed"])
    def lazy(*, seed: int = 0):
        return returned

    with pytest.raises(TaskError, match=f"task returned a {type(returned).__name__} for a pack of 2 trials"):
        list(lazy.__depthrate_task__.run([{"seed": 0}, {"seed": 1}], Context()))


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("def law(*, depth: int):\n    yield {}", "a generator"),
        ("async def law(*, depth: int):\n    return {}", "an async function"),
        ("async def law(*, depth: int):\n    yield {}", "an async function"),
    ],
)
def test_a_function_that_returns_no_tables_is_refused(tmp_path, text, form):
    other = "@depthrate.task()\ndef good(*, depth: int):\n    return {}\n"
    (tmp_path / "mine.py").write_text(f"import depthrate\n{other}@depthrate.task()\n{text}\n")
    with pytest.raises(TaskError, match=rf"mine.py:law \(mine.py, line 5\) is {form}, expected a function that"):
        load_task("./mine.py:law", tmp_path)
    assert load_task("./mine.py:good", tmp_path).name == "mine:good"


def test_fusible_must_name_an_argument():
    with pytest.raises(ParameterError, match=r"unknown parameter 'sed' in fusible of task 'law' .did you mean 'seed'"):

        @task(fusible=["sed"])
        def law(*, seed: int = 0):
            return []


def test_task_file_executes_once_per_change(tmp_path: Path) -> None:
    path = tmp_path / "counted.py"
    text = "import depthrate\nwith open(__file__ + '.log', 'a') as log:\n    log.write('x')\n"
    text += "@depthrate.task(version={})\ndef f(*, depth: int): return {{}}\n"
    path.write_text(text.format(1))
    assert [load_task(f"{path}:f").version for _ in range(3)] == [1, 1, 1]
    path.write_text(text.format(22))
    assert load_task(f"{path}:f").version == 22
    assert Path(f"{path}.log").read_text() == "xx"


def test_only_the_requested_task_is_checked(tmp_path: Path) -> None:
    header = "from __future__ import annotations\nimport depthrate\n"
    tasks = {"good": "depth: int", "unfit": "depth: dict", "unknown": "depth: Nothing"}
    text = "".join(f"@depthrate.task()\ndef {name}(*, {of}): return {{}}\n" for name, of in tasks.items())
    (tmp_path / "tasks.py").write_text(header + text)
    assert list(load_task("tasks.py:good", tmp_path).schema) == ["depth"]
    with pytest.raises(ParameterError, match="task 'unfit': argument 'depth' is annotated"):
        load_task("tasks.py:unfit", tmp_path)
    with pytest.raises(TaskError, match=r"tasks\.py: NameError: name 'Nothing'"):
        load_task("tasks.py:unknown", tmp_path)
