"""`depthrate plan FOLDER`: a row a sweep."""

import json

from tests.support.here import printed

LAW = """import depthrate
@depthrate.task()
def law(*, depth: int):
    return {"metrics": [{"layer": depth, "nc1": 1 / depth}]}
"""


def test_folder_plan_has_a_row_per_sweep(tmp_path, monkeypatch):
    monkeypatch.setenv("DEPTHRATE_DATA", str(tmp_path / "data"))
    store = tmp_path / "store"
    folder = tmp_path / "sweeps"
    folder.mkdir()
    (tmp_path / "law.py").write_text(LAW)
    (folder / "a.yaml").write_text(f"name: a\ntask: {tmp_path}/law.py:law\ngrid: {{depth: [1, 2, 3]}}\n")
    (folder / "b.yaml").write_text(
        "name: b\ntask: collapse\n"
        "params: {arch: rn1, dataset: mnist, samples_per_class: 20, depth: 2, weight_decay: 0.005, lr: 0.1, steps: 100}\n"
    )
    (folder / "c.yaml").write_text("name: c\ntask: no_such_task\n")
    printed("run", folder / "a.yaml", "--set", "depth=[1, 2]", "--set", "name=a", "--store", store)
    a, b, c = json.loads(printed("plan", folder, "--store", store, "--json"))
    assert a == {"sweep": f"{folder}/a.yaml", "trials": 3, "done": 2, "packs": 1, "hours": a["hours"], "lacks": None}
    assert (b["trials"], b["packs"]) == (1, 1) and b["hours"] > 0 and "data set 'mnist' not found" in b["lacks"]
    assert c["trials"] is None and "no_such_task" in c["lacks"]
    text = printed("plan", folder, "--store", store)
    assert "missing in 1 sweep: data set 'mnist' not found in " in text and "3 sweeps: " in text


def test_shipped_sweeps_have_a_row_each(tmp_path):
    rows = json.loads(printed("plan", "papers/words/", "--store", tmp_path / "store", "--json"))
    assert len(rows) > 10 and all(row["sweep"].startswith("papers/words/") for row in rows)
    assert {row["lacks"] for row in rows} == {None} and all(row["hours"] > 0 for row in rows)
