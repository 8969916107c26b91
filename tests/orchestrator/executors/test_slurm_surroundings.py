"""What packs find around them in a job on a real controller: shared GPUs, containers, scratch folders, data, keys."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from depthrate.storage.files.store import Store
from tests.support.s3_server import S3Server
from tests.support.slurm_bench import CHECKPOINT_S, Bench

pytestmark = pytest.mark.timeout(1800)
ROOT = Path(__file__).parents[3]
IMAGE = os.environ.get("DEPTHRATE_TEST_IMAGE")
"""Container image with the system of this Python. CONTRIBUTING.md describes how to build one."""
CONTROL = """\
#!/bin/bash
if [ "$1" = -d ]; then echo start; touch "$CUDA_MPS_PIPE_DIRECTORY/control"; else read word; echo $word; fi >> {log}
"""


def look_around(bench: Bench, num_packs: int, **params: Any) -> None:
    """Write a sweep of packs that record their environment."""
    all_params = {"trace": str(bench.trace), **params}
    bench.sweep("looks_around", params=all_params, grid={"depth": list(range(2, 2 + num_packs))})


def seen(bench: Bench) -> list[dict[str, Any]]:
    """Return the record of each pack."""
    return [json.loads(line) for line in bench.trace.read_text().splitlines()]


@pytest.mark.parametrize("has_service", [True, False])
def test_packs_share_a_gpu(bench: Bench, has_service: bool) -> None:
    bench.profile |= {"gpus": "fake:2", "cpus": 2, "packs_per_gpu": 2, "gpu_mem_gb": 8}
    log = bench.folder / "control.log"
    if has_service:
        programs = bench.folder / "programs"
        programs.mkdir()
        (programs / "nvidia-cuda-mps-control").write_text(CONTROL.format(log=log))
        (programs / "nvidia-cuda-mps-control").chmod(0o755)
        bench.profile["setup"] = [f"export PATH={programs}:$PATH"]
    look_around(bench, 8, company=2)
    plan = json.loads(bench.run("plan", "--json"))
    assert plan["jobs"] == 2 and plan["share_of_slots_used"] == 1
    assert json.loads(bench.run("plan", "--json", "--packs-per-gpu", "1"))["jobs"] == 4
    bench.wait(bench.start())
    bench.check(8)
    places = {(entry["SLURM_JOB_ID"], entry["CUDA_VISIBLE_DEVICES"]) for entry in seen(bench)}
    assert len(places) == 4 and {gpu for _, gpu in places} == {"0", "1"}, "two jobs of two GPUs each"
    assert {entry["device"] for entry in seen(bench)} == {"cuda"}
    for place in places:
        first, second = (e for e in seen(bench) if (e["SLURM_JOB_ID"], e["CUDA_VISIBLE_DEVICES"]) == place)
        assert max(first["began"], second["began"]) < min(first["ended"], second["ended"]), "at the same time"
    pipes = {entry["CUDA_MPS_PIPE_DIRECTORY"] for entry in seen(bench)}
    if has_service:
        assert all(entry["has_pipe"] for entry in seen(bench)) and len(pipes) == 2, "one service per job"
        assert sorted(log.read_text().split()) == ["quit", "quit", "start", "start"]
        assert not any(os.path.exists(pipe) for pipe in pipes)
    else:
        assert pipes == {None}


@pytest.mark.skipif(not IMAGE or not shutil.which("apptainer"), reason="needs apptainer and DEPTHRATE_TEST_IMAGE")
def test_containers_requeue_without_scontrol(bench: Bench) -> None:
    bench.profile |= {"container": IMAGE, "python": sys.executable}
    bench.profile["container_binds"] = [sys.prefix, os.path.realpath(sys.base_prefix), str(ROOT)]
    bench.environment["PYTHONPATH"] = str(ROOT)
    bench.sweep(params={"steps": 60, "step_s": 0.2}, grid={"depth": [2, 3]})
    process = bench.start()
    bench.until(lambda: len({step[0] for step in bench.steps()}) == 2)
    job = bench.queue()[0][0]
    bench.lab.run("scancel", "--signal=USR2", job)  # as before the time limit
    bench.until(lambda: (job, "PENDING", "") in bench.queue(), 60)
    bench.wait(process)
    bench.check(2, most_redone=0)
    look_around(bench, 1)
    bench.wait(bench.start())
    assert [entry["APPTAINER_CONTAINER"] for entry in seen_last(bench, 1)] == [IMAGE]
    bench.sweep(params={"steps": 200, "step_s": 0.2}, grid={"depth": [5]})
    num_steps = len(bench.steps())
    bench.run("run", "--detach")
    bench.until(lambda: len(bench.steps()) > num_steps)
    bench.run("cancel", bench.name)
    bench.until(lambda: not bench.queue())
    time.sleep(3)
    assert not bench.queue(), "a cancelled job does not come back"


def seen_last(bench: Bench, count: int) -> list[dict[str, Any]]:
    """Return the records of the last packs, from a trace with other lines."""
    return [json.loads(line) for line in bench.trace.read_text().splitlines()[-count:]]


LAG_S = 12.0


def lagging(store: Path) -> list[str]:
    """Return a command prefix that makes a command see a store `LAG_S` seconds late."""
    pytest.importorskip("fuse", reason="needs libfuse2 and pip install fusepy", exc_type=(ImportError, OSError))
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK) or shutil.which("unshare") is None:
        pytest.skip("needs root, /dev/fuse and unshare")
    script = ROOT / "tests/support/lagging_mount.py"
    return ["unshare", "--mount", sys.executable, str(script), str(store), str(LAG_S)]


@pytest.mark.parametrize("event", ["nothing", "a job is killed", "a node dies"])
def test_a_launch_sees_the_store_late(bench: Bench, event: str) -> None:
    """The kernel caches missing names and listings for this long. The launch's jobs see everything immediately."""
    before = lagging(bench.url)
    bench.profile["grace_s"] = LAG_S + 10
    bench.sweep(params={"steps": 60, "step_s": 0.2}, grid={"depth": [2, 3, 5, 8]})
    process = bench.start(within=before)
    bench.until(lambda: len({step[0] for step in bench.steps()}) == 4)
    time.sleep(2 * CHECKPOINT_S)
    node = bench.steps()[-1][3]
    if event == "a job is killed":
        os.kill(max(bench.lab.job_pids(node)), signal.SIGKILL)
    elif event == "a node dies":
        bench.lab.kill_node(node)
    try:
        printed = bench.wait(process)
    finally:
        if event == "a node dies":
            bench.lab.resume_node(node)
    assert "Traceback" not in printed, printed
    bench.check(4, most_redone=0 if event == "nothing" else 2 * round((CHECKPOINT_S + 1) / 0.2))


def test_an_image_that_is_not_there_is_refused(bench: Bench) -> None:
    bench.profile["container"] = "nowhere.sif"
    bench.sweep(grid={"depth": [2]})
    assert "container is 'nowhere.sif', which does not exist" in bench.run("plan", code=2)


@pytest.mark.parametrize("make", ["nothing", "a folder", "a relative path"])
def test_keys_that_are_not_there_are_refused(bench: Bench, make: str) -> None:
    keys = bench.folder / "keys"
    bench.sweep(grid={"depth": [2]})
    if make == "a folder":
        keys.mkdir()
    bench.profile["credentials"] = "keys" if make == "a relative path" else str(keys)
    for verb in ("plan", "run"):
        assert "credentials is '" in (refused := bench.run(verb, code=2)) and "expected a file" in refused
    assert not bench.queue() and not bench.store.list("jobs")
    if make == "a relative path":
        keys.touch()
        assert f"AWS_SHARED_CREDENTIALS_FILE={keys}" in json.loads(bench.run("plan", "--json"))["batch_script"]


CLOUD = """\
NodeName=c1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=8000 State=CLOUD
PartitionName=cloud Nodes=c1 State=UP
PartitionName=hidden Nodes=n1 Hidden=YES State=UP
SuspendProgram=/bin/true
ResumeProgram={resume}
SuspendTime=600
SuspendExcNodes=n[1-4]
ResumeTimeout=120"""


def test_nodes_that_are_powered_down(bench: Bench) -> None:
    """SLURM does not list them. A job powers one up, and waits for it."""
    lab, resumed = bench.lab, bench.folder / "resumed"
    resume = bench.folder / "resume"
    resume.write_text(f"#!/bin/bash\necho $1 > {resumed}\n")
    resume.chmod(0o755)
    host = lab.run("scontrol", "show", "node", "n1").partition("NodeHostName=")[2].split()[0]
    lab.reconfigure(GresTypes="gpu\n" + CLOUD.format(host=host, port=lab.port + 10 + lab.nodes, resume=resume))
    try:
        assert "c1" not in lab.run("scontrol", "--all", "show", "node")
        bench.profile |= {"partition": "cloud", "cpus": 4, "mem_gb": 6, "job_min": 0}
        bench.sweep(params={"steps": 4, "step_s": 0.1}, grid={"depth": [2, 3, 5, 8]})
        assert json.loads(bench.run("plan", "--json"))["jobs"] == 1
        bench.run("run", "--detach")
        bench.until(resumed.exists)
        assert resumed.read_text() == "c1\n" and [row[1:] for row in bench.queue()] == [("CONFIGURING", "c1")]
        state = bench.status()
        assert state["failed"] == state["ok"] == 0
        bench.run("cancel", bench.name)
        bench.profile["cpus"] = 5
        bench.sweep(grid={"depth": [13]})
        refused = bench.run("run", code=2)
        assert "cpus is 5, but the largest node of partition cloud has 4" in refused, "SLURM lists it from then on"
    finally:
        lab.reconfigure()


PLUGIN = """\
function slurm_job_submit(job, partitions, user)
  if job.name == nil or not string.match(job.name, "^p42_%x+$") then
    slurm.log_user("names of jobs are p42_ and a number")
    return slurm.ERROR
  end
  if job.partition ~= nil and job.partition ~= "auto" then return slurm.ERROR end
  job.partition = "high"
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end
return slurm.SUCCESS
"""


@pytest.mark.parametrize("partition", ["auto", None])
def test_a_site_chooses_partitions_and_prescribes_names(bench: Bench, partition: str | None) -> None:
    lab = bench.lab
    (lab.config.parent / "job_submit.lua").write_text(PLUGIN)
    lab.reconfigure(GresTypes="gpu\nJobSubmitPlugins=lua")
    try:
        bench.sweep(params={"steps": 150, "step_s": 0.2}, grid={"depth": [2, 3, 5, 8]})
        if partition is not None:
            bench.profile["partition"] = partition
            refused = bench.run("plan", code=2)
            assert "partition is 'auto'" in refused and "set partition_by_plugin = true" in refused
        bench.profile |= {"partition_by_plugin": True, "mem_gb": 3.5}
        assert "names of jobs are p42_ and a number" in bench.run("run", code=2)
        bench.profile["job_name"] = "p42_{id}"
        process = bench.start()
        bench.until(lambda: bool(bench.steps()))
        listed = lab.run("squeue", "--noheader", "--format=%j %P").split()
        assert set(listed[1::2]) == {"high"} and {name[:4] for name in listed[::2]} == {"p42_"}
        process.send_signal(signal.SIGINT)
        bench.wait(process, code=130)
        assert "already submitted" in bench.wait(bench.start()), "found by their names"
        bench.check(4, most_redone=0)
        bench.until(lambda: not lab.run("squeue", "--noheader"))
        assert not list(bench.url.glob("slurm/*/*")), "folders of finished jobs are deleted"
        bench.profile["mem_gb"] = 4.5
        bench.sweep(grid={"depth": [13]})
        assert "mem_gb is 4.5, but the largest node of partition" in bench.run("plan", code=2)
    finally:
        lab.reconfigure()


def test_scratch_folders_and_data_per_node(bench: Bench) -> None:
    scratch, cache, data = bench.folder / "scratch", bench.folder / "cache", bench.folder / "data"
    data.mkdir()
    (data / "numbers").write_text("one two")
    bench.environment["DEPTHRATE_DATA"] = str(data)
    bench.profile |= {"scratch": f"{scratch}/$USER", "data_cache": f"{cache}/$SLURMD_NODENAME", "array_parallelism": 8}
    bench.environment["USER"] = "me"
    look_around(bench, 8, file="numbers", seconds=0.5)
    bench.wait(bench.start())
    bench.check(8)
    assert {entry["content"] for entry in seen(bench)} == {"one two"}
    assert {Path(entry["TMPDIR"]) for entry in seen(bench)} == {
        scratch / "me" / f"depthrate-{entry['SLURM_JOB_ID']}" for entry in seen(bench)
    }
    copies = [path for path in cache.rglob("*-numbers")]
    assert {path.relative_to(cache).parts[0] for path in copies} <= set(bench.lab.node_names)
    assert len(copies) == len(list(cache.iterdir())), "one copy a node"
    bench.until(lambda: not bench.queue())
    assert not list((scratch / "me").iterdir()), "with the files of the packs"


def files_with(text: str, *folders: Path) -> list[Path]:
    """Return the files below these folders that contain a text."""
    return [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and text.encode() in path.read_bytes()
    ]


def test_secrets_are_read_at_start(bench: Bench, s3: S3Server) -> None:
    """The launch's credentials have expired when its jobs start, and no stored ones have."""
    keys, secrets = bench.folder / "keys", ("OLDSECRET7c1f", "NEWSECRET9a2e")
    keys.mkdir()
    file = keys / "credentials"

    def write(name: str, secret: str) -> None:
        text = f"[default]\naws_access_key_id = {name}\naws_secret_access_key = {secret}\n"
        file.write_text(text)

    write("OLDKEY", secrets[0])
    bench.store = Store(s3.new_url())
    bench.url = bench.store.url  # type: ignore[assignment]
    jobs = bench.folder / "jobs"
    bench.environment |= {"AWS_ACCESS_KEY_ID": "FIRSTKEY", "AWS_SECRET_ACCESS_KEY": "FIRSTSECRET5d3b"}
    places = [jobs, *(bench.lab.folder / name for name in ("state", "spool", "log"))]
    bench.profile |= {"folder": str(jobs), "extra": ["--hold"]}
    look_around(bench, 2, seconds=0.2)
    bench.run("run", "--detach")
    assert files_with("FIRSTSECRET5d3b", *places[1:]), "sbatch takes the environment along, and SLURM keeps it"
    bench.run("cancel", bench.name)
    bench.until(lambda: not bench.queue())
    bench.environment |= {"AWS_ACCESS_KEY_ID": "OLDKEY", "AWS_SECRET_ACCESS_KEY": secrets[0]}
    bench.profile["credentials"] = str(file)
    bench.run("run", "--detach")
    assert not files_with(secrets[0], *places)
    write("NEWKEY", secrets[1])
    bench.environment |= {"AWS_ACCESS_KEY_ID": "NEWKEY", "AWS_SECRET_ACCESS_KEY": secrets[1]}
    bench.lab.run("scontrol", "release", ",".join({job.partition("_")[0] for job, _, _ in bench.queue()}))
    bench.until(lambda: bench.trace.exists() and len(seen(bench)) == 2)
    assert {entry["key"] for entry in seen(bench)} == {"NEWKEY"}
    bench.until(lambda: not bench.queue())
    bench.run("run")
    for secret in secrets:
        assert not files_with(secret, *places)
        everything = dict(bench.store.read_many(bench.store.list()))
        assert len(everything) > 3 and not [p for p, content in everything.items() if secret.encode() in content]
