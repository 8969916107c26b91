"""What `plan` says of how steps are run."""

import json
from types import SimpleNamespace

import pytest

from depthrate.orchestrator.executors.base import usable_engine
from depthrate.tasks.interface import Engine
from tests.support.here import answer, printed


def planned(tmp_path, *arguments):
    return printed("plan", "quickstart", "--store", tmp_path / "store", *arguments)


@pytest.mark.parametrize(
    ("arguments", "engines", "sentence"),
    [
        ([], {"native"}, "all packs train natively (kernels are built once per machine and width, in seconds)"),
        (["--engine", "eager"], {"eager"}, "all packs train eagerly"),
        (["--set", "arch=mlp"], {"native"}, "all packs train natively"),
        (["--set", "optimizer=adamw"], {"eager"}, "all packs train eagerly, because optimizer is adamw"),
    ],
)
def test_a_plan_says_which_packs_train_how(tmp_path, arguments, engines, sentence):
    packs = json.loads(planned(tmp_path, *arguments, "--json"))["packs"]
    assert {pack["engine"] for pack in packs} == engines
    assert sentence in planned(tmp_path, *arguments)


def test_no_compiler_means_eager(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "all packs train eagerly" in planned(tmp_path)
    assert "all packs train natively" in planned(tmp_path, "--engine", "native")  # and fail, saying why


@pytest.mark.parametrize(("is_local", "device"), [(True, "cuda"), (False, "cpu")])
def test_a_gpu_and_other_machines_need_no_compiler_here(is_local, device, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    executor = SimpleNamespace(is_local=is_local, device=device)
    assert usable_engine(executor, Engine.AUTO) == (Engine.AUTO, None)
    here = SimpleNamespace(is_local=True, device="cpu")
    engine, reason = usable_engine(here, Engine.AUTO)
    assert engine is Engine.EAGER and "no-such-compiler" in reason
    assert usable_engine(here, Engine.NATIVE) == (Engine.NATIVE, None)


def test_a_task_without_the_choice_has_no_engine(tmp_path):
    (tmp_path / "law.py").write_text(
        "import depthrate\n@depthrate.task()\ndef law(*, depth: int):\n    return {'metrics': [{'layer': depth, 'nc1': 1.0}]}\n"
    )
    (tmp_path / "s.yaml").write_text(f"name: s\ntask: {tmp_path}/law.py:law\nparams: {{depth: 2}}\n")
    arguments = ["plan", tmp_path / "s.yaml", "--store", tmp_path / "store"]
    assert [pack["engine"] for pack in answer(*arguments)["packs"]] == [None]
    assert "eagerly" not in printed(*arguments)
