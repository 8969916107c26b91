"""Every listing of the pages on custom code runs; a killed training loop resumes, and measures as probe does."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import depthrate
from tests.support.here import await_that, printed, refused

DOCS = Path(__file__).parents[1] / "docs"
TUTORIAL = (DOCS / "tutorials" / "own-model.md").read_text()
PAGE = (DOCS / "how-to" / "custom-tasks.md").read_text()


def blocks(language: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def listing(name: str) -> str:
    """Return the Python or YAML listing of a file or sweep on one of the two pages."""
    listings = [code for page in (TUTORIAL, PAGE) for language in ("python", "yaml") for code in blocks(language, page)]
    (match,) = (code for code in listings if re.match(rf"(# {re.escape(name)}[\s,]|name: {re.escape(name)}\n)", code))
    return match


def one_seed(name: str) -> tuple[str, ...]:
    """Return the command that runs a sweep of the pages with one seed, under its own name."""
    return ("run", f"{name}.yaml", "--workers", "1", "--set", "seeds=1", "--set", f"name={name}")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model.py", "data.py"):
        Path(name).write_text(listing(name))


@pytest.mark.slow
def test_custom_network_is_measured_and_fitted() -> None:
    Path("net.yaml").write_text(listing("net"))
    planned = printed("plan", "net.yaml")
    assert "model:Net: trains fused" in planned and "1 blocks.0 to 8 blocks.7 [32]" in planned
    output = printed(*one_seed("net"))
    assert re.search(r"nc1 +0\.\d+ depth\^-0\.\d+ ", output), "the tutorial promises a power law"
    results = depthrate.open("results")
    frame = results.sql(
        "select depth, layer, avg(nc1) as nc1, count(*) as n from metrics join trials using (trial_id) where step = 2000 "
        "group by all order by depth, layer"
    ).df()
    layers = frame[frame["depth"] == 5]
    assert list(layers["layer"]) == [0, 1, 2, 3, 4, 5] and set(frame["n"]) == {1}
    assert layers["nc1"].is_monotonic_decreasing, "the tutorial's table falls from block to block"
    assert list(results.sql("select distinct task, arch from results").fetchall()) == [("own", "model:Net")]
    Path("model.py").write_text(Path("model.py").read_text().replace("self.norm(x +", "self.norm(0.5 * x +"))
    message = refused(*one_seed("net"))
    assert "0.5 * x +" in message and "keep both, as different trials" in message
    assert "12 trials, 0 done" not in printed("plan", "net.yaml")


@pytest.mark.slow
def test_data_of_ones_own() -> None:
    Path("noise.yaml").write_text(listing("noise"))
    printed(*one_seed("noise"), "--set", "depth=[2,3]")
    found = depthrate.open("results").sql("select noise, dataset_hash, avg(nc1) as nc1 from results group by all").df()
    assert len(found) == 2 and found["dataset_hash"].nunique() == 2 and (found["nc1"] > 0).all()


@pytest.mark.slow
def test_next_tokens_in_twenty_lines() -> None:
    chain, sweep = listing("chain.py"), listing("chain")
    assert len((chain + sweep).splitlines()) <= 20
    Path("chain.py").write_text(chain)
    Path("chain.yaml").write_text(sweep)
    assert "nc1" in printed(*one_seed("chain"))
    results = depthrate.open("results")
    ((exponent,),) = results.sql("select exponent from fits where metric = 'nc1' and model = 'power'").fetchall()
    assert exponent > 0.1
    wanted = "nc1 > 0 and cdnv > 0 and nc3_means > 0 and nc4 > 0.3 and accuracy > 0.3 and measured_classes > 2"
    assert results.sql(f"select count(*) from results where {wanted}").fetchall() == [(3,)]
    printed("report", "chain", "-o", "chain.html")
    assert "NC1 against depth" in Path("chain.html").read_text()


@pytest.mark.slow
def test_regression_in_twenty_lines() -> None:
    targets, sweep = listing("targets.py"), listing("sines")
    assert len((targets + sweep).splitlines()) <= 20
    Path("targets.py").write_text(targets)
    Path("sines.yaml").write_text(sweep)
    assert "nrc1" in printed(*one_seed("sines"))
    results = depthrate.open("results")
    ((exponent,),) = results.sql("select exponent from fits where metric = 'nrc1' and model = 'power'").fetchall()
    assert exponent > 0.5, "a deeper network's last features lie nearer to the targets' dimensions"
    found = results.sql(
        "select nrc1, nrc2, nrc3, effective_rank, intrinsic_dimension, linear_probe, r_squared, last_loss from results"
    ).df()
    assert len(found) == 4 and found.notna().all(axis=None) and (found["r_squared"] > 0.5).all()
    printed("report", "sines", "-o", "sines.html")
    page = Path("sines.html").read_text()
    assert "NRC1 against depth" in page and "NRC2, last layer" in page


@pytest.mark.slow
def test_five_million_samples_in_twenty_lines() -> None:
    vast, sweep = listing("vast.py"), listing("vast")
    assert len((vast + sweep).splitlines()) <= 20
    Path("vast.py").write_text(vast)
    Path("vast.yaml").write_text(sweep)
    planned = printed("plan", "vast.yaml")
    assert "5,000,000 samples are streamed" in planned and "those of 4,096 samples" in planned
    assert "nc1" in printed(*one_seed("vast"))
    results = depthrate.open("results")
    ((exponent,),) = results.sql("select exponent from fits where metric = 'nc1' and model = 'power'").fetchall()
    assert exponent > 0.3
    found = results.sql("select nc1, nc3, accuracy, last_loss, stream from results").df()
    assert len(found) == 4
    assert found.notna().all(axis=None)
    assert (found["accuracy"] > 0.9).all()
    assert found["stream"].all()
    printed("report", "vast", "-o", "vast.html")
    assert "NC1 against depth" in Path("vast.html").read_text()


@pytest.mark.slow
def test_named_metrics_of_a_custom_network() -> None:
    Path("dimensions.yaml").write_text(listing("dimensions"))
    assert "intrinsic_dimension" in printed("run", "dimensions.yaml", "--workers", "1")
    found = (
        depthrate.open("results")
        .sql(
            "select depth, layer, intrinsic_dimension, cka_last from metrics join trials using (trial_id) where step = 40"
        )
        .df()
    )
    assert len(found) == 2 * (3 + 4 + 5) and (found["intrinsic_dimension"] > 0).all()
    assert found["cka_last"].between(0, 1.000001).all() and (found["cka_last"] < 0.99).any()


def test_features_in_every_form() -> None:
    from torch.utils.data import DataLoader, TensorDataset

    sys.path.insert(0, ".")
    namespace: dict[str, object] = {}
    exec(Path("model.py").read_text(), namespace)
    exec(Path("data.py").read_text(), namespace)
    x, y = namespace["make"]()  # type: ignore[operator]
    model = namespace["Net"](2, 8, 16, 4)  # type: ignore[operator]
    features, weight = torch.relu(model.first(torch.as_tensor(x).float())).detach(), model.head.weight
    whole, streamed, probed, compared = (code for code in blocks("python") if not code.startswith("# "))
    own = {"features": features, "labels": y, "weight": weight, "depthrate": depthrate}
    exec(whole, own)
    expected = own["values"]
    own["batches"] = lambda: zip(np.array_split(features.numpy(), 5), np.array_split(y, 5), strict=True)
    exec(streamed, own)
    for name, value in expected.items():  # type: ignore[attr-defined]
        given, wanted = (np.asarray(item, float) for item in (own["values"][name], value))  # type: ignore[index]
        np.testing.assert_allclose(given, wanted, rtol=1e-10, err_msg=name)  # null is nan
    own |= {"model": model, "loader": DataLoader(TensorDataset(torch.as_tensor(x).float(), torch.as_tensor(y)), 32)}
    exec(probed, own)
    assert [row["name"] for row in own["rows"]] == ["input", "blocks.0", "blocks.1"]  # type: ignore[attr-defined]
    exec(compared, own)
    assert own["similar"]["blocks.0"] == pytest.approx(1) and 0 < own["similar"]["blocks.1"] < 1  # type: ignore[index]
    assert all(0 < item < 17 for item in own["dimensions"].values())  # type: ignore[attr-defined]


def after(diff: str) -> str:
    return "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("-")) + "\n"


def before(diff: str) -> str:
    return "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("+")) + "\n"


@pytest.mark.slow
def test_killed_loop_resumes_and_measures() -> None:
    diff = blocks("diff")[0]
    Path("script.py").write_text(before(diff).replace("    print(step", "    pass  # "))
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    slow = "            Path('steps').open('a').write(f'{step}\\n') and time.sleep(0.05)\n            run.log("
    task = after(diff).replace("            run.log(", slow)
    Path("loop.py").write_text(
        "import time\nfrom pathlib import Path\n" + task.replace("Path('", f"Path('{os.getcwd()}/")
    )
    Path("loop.yaml").write_text("name: loop\ntask: ./loop.py:train\ngrid: {depth: [3]}\n")
    command = [sys.executable, "-c", "from depthrate.orchestrator.cli.app import app; app()", "run", "loop.yaml"]
    command += ["--workers", "1", "--checkpoint-seconds", "1"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    await_that(lambda: list(Path().glob("results/checkpoints/*/*")) and len(steps_done()) >= 60, 200)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    taken = steps_done()
    assert len(taken) < 200
    printed("run", "loop.yaml", "--workers", "1")
    again = steps_done()[len(taken) :]
    assert again[0] > 0 and set(taken) | set(again) == set(
        range(200)
    )  # at most what came after the last checkpoint is repeated
    results = depthrate.open("results")
    curves = results.sql("select step, loss from curves order by step").df()
    assert list(curves["step"]) == list(range(200))
    assert results.sql("select last_loss from results").fetchall() == [(curves["loss"].iloc[-1],)]
    namespace: dict[str, object] = {"__name__": "model"}
    exec(Path("model.py").read_text() + Path("data.py").read_text(), namespace)
    model = namespace["Net"](3, 16, 16, 4)  # type: ignore[operator]
    model.load_state_dict(torch.load("model.pt"))  # what the script saved, which nobody killed
    x, y = namespace["make"]()  # type: ignore[operator]
    expected = depthrate.probe(model, (torch.as_tensor(x).float(), torch.as_tensor(y)), layers="blocks.*")
    found = results.sql("select * from metrics order by layer").df()
    for name in ("nc1", "nc1_pinv", "nc3", "pfc2", "ncc_accuracy", "relative_position"):
        wanted = [np.nan if row.get(name) is None else row[name] for row in expected]
        np.testing.assert_allclose(found[name].astype(float), wanted, rtol=1e-6, err_msg=name)


def steps_done() -> list[int]:
    return [int(line) for line in Path("steps").read_text().split()] if Path("steps").exists() else []


@pytest.mark.slow
def test_custom_metrics_are_measured_and_fitted() -> None:
    Path("my_metrics.py").write_text(listing("my_metrics.py"))
    Path("margins.yaml").write_text(listing("margins"))
    assert "my_metrics:margins: measured per layer as closest_means, largest_mean," in printed("plan", "margins.yaml")
    assert re.search(r"closest_means +\S", printed(*one_seed("margins"), "--set", "steps=20"))
    printed("report", "margins")
    assert "closest_means" in Path("report.html").read_text()
    results = depthrate.open("results")
    query = "select count(sparsity), count(correct), count(*) from metrics where step = 20"
    assert results.sql(query).fetchall() == [(22, 18, 22)]
    accuracies = results.sql("select correct, accuracy from results").fetchall()
    assert all(0 <= correct <= 1 and accuracy is not None for correct, accuracy in accuracies)
