"""`engine: native` depends on the trial only, is kept on resume, and raises if unsupported instead of changing silently."""

from pathlib import Path

import pytest
import torch

from depthrate.tasks.interface import Engine, Interrupted
from depthrate.tasks.native.compiler import EngineError, NoCompilerError
from depthrate.tasks.papers.unconstrained.task import DUFM
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.checkpoint import deserialise, serialise
from depthrate.tasks.training.pack_state import Steps
from tests.support.here import answer, printed, refused
from tests.support.native_trials import network_of, plan_of, trainer_of, trials_of
from tests.support.training_context import Context, assert_same, ids_of


def params_of(seed=0, **changes):
    given = {"arch": "rn1", "depth": 2, "width": 9, "samples_per_class": 4, "steps": 60, "seed": seed, **changes}
    return COLLAPSE.schema.fill(given)


def run_as(engine, trials, **given):
    context = Context(ids_of(trials), engine=engine, **given)
    return list(COLLAPSE.run(trials, context)), context


class Stopping(Context):
    """Requests a stop once a step is reached; several steps may be taken between two polls."""

    def should_stop(self):
        return bool(self.steps_seen) and self.stop_at is not None and self.steps_seen[-1] >= self.stop_at


@pytest.mark.slow
def test_a_pack_trains_measures_and_reports_its_engine():
    trials = [params_of(seed, batch_size=16) for seed in range(3)]
    found, context = run_as(Engine.NATIVE, trials)
    assert [engine for engine, _ in context.ran_as] == [Engine.NATIVE] * 2 and context.ran_as[-1][1] is not None
    assert context.steps_seen[-1] == 60 and [result.num_steps for result in found] == [60] * 3
    eagerly, _ = run_as(Engine.EAGER, trials)
    for one, other in zip(found, eagerly, strict=True):
        assert [row["step"] for row in one.tables["curves"]] == [row["step"] for row in other.tables["curves"]]
        last, eager = one.tables["curves"][-1], other.tables["curves"][-1]
        assert last["loss"] == pytest.approx(eager["loss"], rel=1e-3)
    for trial, result in zip(trials, found, strict=True):
        assert_same(run_as(Engine.NATIVE, [trial])[0], [type(result)(0, result.tables, result.status, 60)])


@pytest.mark.slow
@pytest.mark.parametrize("requested", [Engine.EAGER, Engine.AUTO, Engine.NATIVE])
def test_resumed_native_pack_stays_native(requested):
    trials = [params_of(seed, batch_size=16, arch="rn2", norm="pre") for seed in range(2)]
    whole, _ = run_as(Engine.NATIVE, trials)
    first = Stopping(ids_of(trials), engine=Engine.NATIVE, stop_at=7)
    with pytest.raises(Interrupted):
        list(COLLAPSE.run(trials, first))
    second = Context(ids_of(trials), engine=requested, checkpoint=first.checkpoint)
    assert_same(list(COLLAPSE.run(trials, second)), whole)
    assert second.ran_as[-1][0] is Engine.NATIVE and second.steps_seen[0] > 7


def test_resumed_eager_pack_stays_eager():
    trials = [params_of()]
    first = Context(ids_of(trials), engine=Engine.EAGER, stop_at=17)
    with pytest.raises(Interrupted):
        list(COLLAPSE.run(trials, first))
    found, second = run_as(Engine.NATIVE, trials, checkpoint=first.checkpoint)
    assert_same(found, run_as(Engine.EAGER, trials)[0])
    assert second.ran_as == [(Engine.EAGER, None)]


def test_checkpoint_of_a_former_engine_restarts():
    trials = [params_of()]
    first = Context(ids_of(trials), stop_at=17)
    with pytest.raises(Interrupted):
        list(COLLAPSE.run(trials, first))
    checkpoint = serialise({**deserialise(first.checkpoint), "engine": "compiled"})
    found, second = run_as(Engine.EAGER, trials, checkpoint=checkpoint)
    assert_same(found, run_as(Engine.EAGER, trials)[0])
    assert second.steps_seen[0] == 1


def test_a_step_that_is_another_is_refused():
    class Wrong(Steps):
        engine = Engine.NATIVE

        def prepare(self):
            pass

        def step(self, max_steps, divergence):
            return torch.full((1,), 7.0)

    trainer, untouched = (trainer_of(network_of(9), plan_of(), trials_of(2), 43) for _ in range(2))
    with pytest.raises(EngineError, match=r"of ResidualNetwork has loss 7 and the eager step \d\.\d+.*--engine eager"):
        trainer.use(Wrong)
    assert torch.equal(trainer.step(), untouched.step())


def test_trials_without_native_steps_are_rejected():
    def choice(device="cpu", **given):
        return COLLAPSE.engine(params_of(**given), Engine.NATIVE, device)

    assert (
        choice("cuda")
        is choice("cuda", label_smoothing=0.1)
        is choice("cuda", arch="t11", patch_size=4)
        is Engine.NATIVE
    )
    assert choice() is choice(arch="t11", patch_size=4) is Engine.NATIVE
    assert choice(arch="rn2", norm="pre", optimizer="adam", loss="mse", dtype="float64") is Engine.NATIVE
    refusals = {"no kernels for DenseResNet": {"arch": "resnet_dense"}}
    refusals |= {r"no kernels for DenseResNet on this device \(cuda\)": {"arch": "resnet_dense", "device": "cuda"}}
    refusals |= {"the device is mps": {"device": "mps"}, "matmul_precision is bf16": {"matmul_precision": "bf16"}}
    for why, given in refusals.items():
        with pytest.raises(EngineError, match=f"native steps do not support these trials: .*{why}.*--engine auto"):
            choice(**given)
    dufm = DUFM.schema.fill({"depth": 2, "num_classes": 2, "samples_per_class": 2, "width": 3, "steps": 3})
    assert DUFM.engine(dufm, Engine.AUTO, "cpu") is Engine.NATIVE


def test_no_compiler_refuses_native(monkeypatch):
    trials = [params_of(width=11)]
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoCompilerError, match="'no-such-compiler' is not on PATH"):
        run_as(Engine.NATIVE, trials)


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """A function that writes a sweep of some parameters beside an empty store."""
    monkeypatch.chdir(tmp_path)

    def write(params, more=""):
        given = f"{{arch: rn1, steps: 30, samples_per_class: 4, {params}}}"
        Path("s.yaml").write_text(f"name: s\ntask: collapse\nparams: {given}\n{more}\n")

    return write


def test_plan_shows_or_rejects_the_engine(sweep):
    sweep("depth: 2", "engine: native")
    assert {pack["engine"] for pack in answer("plan", "s.yaml")["packs"]} == {"native"}
    for command in ("plan", "run"):
        message = refused(command, "s.yaml", "--set", "arch=resnet_dense")
        assert "native steps do not support these trials" in message
    assert not Path("results").exists()


def test_default_engine_is_recorded(sweep):
    sweep("depth: 2, width: 9")
    printed("run", "s.yaml", "--workers", "1")
    query = "select engine, compile_s is not null as took_time from attempts"
    assert answer("query", query) == [{"engine": "native", "took_time": True}]


@pytest.mark.slow
def test_compilerless_machine_yields_the_pack(sweep, monkeypatch):
    """No other machine exists here, so the trial is given up at once."""
    sweep("depth: 2, width: 11")
    monkeypatch.setenv("CXX", "no-such-compiler")
    said = printed("run", "s.yaml", "--engine", "native", "--workers", "1", code=1)
    assert "the C++ compiler 'no-such-compiler' is not on PATH" in said
    assert answer("query", "select error_kind from attempts") == [{"error_kind": "not_here"}]


@pytest.mark.slow
def test_no_local_compiler_warns_once(sweep, monkeypatch, caplog):
    sweep("width: 11", "grid: {depth: [2, 3]}")
    monkeypatch.setenv("CXX", "no-such-compiler")
    printed("run", "s.yaml", "--workers", "1")
    messages = [record.getMessage() for record in caplog.records if "eagerly" in record.getMessage()]
    assert len(messages) == 1
    assert "trials train eagerly, because the C++ compiler 'no-such-compiler' is not on PATH" in messages[0]
    assert answer("query", "select distinct engine from attempts") == [{"engine": "eager"}]


@pytest.mark.slow
def test_fit_over_several_engines_warns(sweep):
    sweep("width: 9", "fit: [{metric: nc1}]\ngrid: {depth: [2, 3]}")
    assert "engines" not in printed("run", "s.yaml", "--workers", "1")
    sweep("width: 9", "fit: [{metric: nc1}]\ngrid: {depth: [2, 3, 4]}")
    both = printed("run", "s.yaml", "--workers", "1", "--engine", "eager")
    assert "warning: the trials of s were trained by 2 engines (2 native, 1 eager), which agree" in both
