"""Cluster files, limits, job states, bundles and the batch script, without SLURM."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from depthrate.orchestrator.executors.slurm.submitter import bundle, share_of_slots_used
from depthrate.slurm import job_states
from depthrate.slurm.cluster_limits import Limits, Partition, parse_minutes, read_limits
from depthrate.slurm.command import run_command
from depthrate.slurm.errors import SlurmError
from depthrate.slurm.job_states import JobState, sacct_states, squeue_states
from depthrate.slurm.profile import Profile, expiring_keys_message, load_profile, make_profile
from depthrate.slurm.script import all_jobs_ended, batch_script, check_python, sbatch_parameters, work_file

ROOT = Path(__file__).parents[2]
GOLDEN = """\
#!/bin/bash

# Parameters
#SBATCH --account=theory
#SBATCH --array=0-6%3
#SBATCH --constraint='a100|h100'
#SBATCH --cpus-per-task=4
#SBATCH --error={folder}/%A_%a_0_log.err
#SBATCH --exclude=n3,n9
#SBATCH --gpus-per-node=1
#SBATCH --job-name=depthrate-wd
#SBATCH --mail-type=FAIL
#SBATCH --mem=16384M
#SBATCH --nodes=1
#SBATCH --open-mode=append
#SBATCH --output={folder}/%A_%a_0_log.out
#SBATCH --partition=gpu
#SBATCH --qos=long
#SBATCH --requeue
#SBATCH --signal=USR2@120
#SBATCH --time=240

# setup
scratch_of_job=
here={folder}
export DEPTHRATE_START_MARKER="$here/begun-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}"
depthrate_ends() {{
  code=$?
  if ((code > 0 && code < 128)) && [ ! -e "$DEPTHRATE_START_MARKER" ]; then
    job=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
    job=${{job:-$SLURM_JOB_ID}} report="$here/failed_starts/$SLURM_JOB_ID.new"
    {{ echo "$code $SLURMD_NODENAME"; tail -qc 2000 "$here/$job"_*log.err; }} > "$report"
    mv "$report" "$here/failed_starts/$job-${{SLURM_RESTART_COUNT:-0}}"
  fi
  ((code)) || touch "$here/work_${{SLURM_ARRAY_TASK_ID:-0}}.ended"
  ((code == 0 || code >= 128 || SECONDS >= 20)) || sleep $((20 - SECONDS))
}}
trap depthrate_ends EXIT
trap 'code=$?; if ((${{#BASH_SOURCE[@]}} == 1)); then echo "a setup line ended with code $code: $BASH_COMMAND" >&2; \
exit 113; fi' ERR
module load cuda/12.4
trap - ERR
export PYTHONSAFEPATH=1
export DEPTHRATE_WARNING_S=120
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
unset SLURM_EXPORT_ENV
ln -sf "work_${{SLURM_ARRAY_TASK_ID:-0}}.pkl" \
{folder}/"${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}_submitted.pkl"

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output {folder}/%A_%a_%t_log.out --error {folder}/%A_%a_%t_log.err --cpus-per-task=4 /venv/bin/python \
-u -m submitit.core._submit {folder}
"""
LIMITS = Limits(
    cluster="lab",
    max_array_size=101,
    max_jobs=2000,
    partitions={
        "main": Partition("main", True, True, 120.0, cpus=8, mem_gb=16.0, gpus=2, nodes=4, gpu_types={"v100": 2}),
        "long": Partition("long", False, True, None, 8, 16.0, 0, 4, features=frozenset(["80gb", "intel"])),
        "off": Partition("off", False, False, None, cpus=8, mem_gb=16.0, gpus=2, nodes=4),
    },
)


def test_the_batch_script(programs: Any, tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    programs(srun="")
    content = {
        **{"partition": "gpu", "account": "theory", "qos": "long", "constraint": "a100|h100", "exclude": ["n9"]},
        **{"gpus": 1, "cpus": 4, "mem_gb": 16, "walltime_min": 240, "array_parallelism": 3},
        **{"setup": ["module load cuda/12.4"], "extra": ["--mail-type=FAIL"], "python": "/venv/bin/python"},
    }
    script = batch_script(make_profile(content, "x.toml"), "depthrate-wd", 7, tmp_path, exclude=["n3"])
    assert script == GOLDEN.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ({"gpus": "a100:2"}, ["--gpus-per-node=a100:2", "--mem=4096M"]),
        ({"gpus": "1g.10gb:3"}, ["--gpus-per-node=1g.10gb:3", "--mem=4096M"]),
        ({"gres": "gpu:a100:2,tmpdir:20G"}, ["--gres=gpu:a100:2,tmpdir:20G", "--mem=4096M"]),
        ({"gres": ["tmpdir:20G"], "gpus": 1}, ["--gpus-per-node=1", "--gres=tmpdir:20G", "--mem=4096M"]),
        ({"mem_gb": "default"}, []),
        ({"cpus": 3, "mem_per_cpu_gb": 1.5}, ["--mem-per-cpu=1536M"]),
        ({"exclusive": True}, ["--exclusive", "--mem=4096M"]),
        ({"partition": ["gpu", "gpu-long"]}, ["--mem=4096M", "--partition=gpu,gpu-long"]),
        ({"account": ["a", "b"], "qos": "long"}, ["--account=a", "--mem=4096M", "--qos=long"]),
        ({"partition_by_plugin": True}, ["--mem=4096M"]),
        ({"partition_by_plugin": True, "partition": "auto"}, ["--mem=4096M", "--partition=auto"]),
    ],
    ids=str,
)
def test_what_sbatch_is_asked_for(programs: Any, tmp_path: Path, content: dict[str, Any], lines: list[str]) -> None:
    pytest.importorskip("submitit")
    programs(srun="")
    script = batch_script(make_profile(content, "x.toml"), "x", 1, tmp_path)
    requested = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]
    always = ("cpus-per-task", "error", "job-name", "nodes", "open-mode", "output", "requeue", "signal", "time")
    assert [line for line in requested if line[2:].partition("=")[0] not in always] == lines


def test_folders_of_nodes_may_start_with_a_variable_or_a_home() -> None:
    folders = ("/local", "$TMPDIR/x", "${SCRATCH:-/tmp}", "~/scratch")
    read = [make_profile({"scratch": folder, "data_cache": folder}, "x.toml") for folder in folders]
    assert [profile.scratch for profile in read] == [*folders[:3], str(Path.home() / "scratch")]
    assert [profile.data_cache for profile in read] == [profile.scratch for profile in read]


@pytest.mark.parametrize(
    ("job_name", "name"),
    [
        (None, "depthrate-a_b-20260102T030405_0123456789ab"),
        ("p42-{id}", "p42-0123456789ab"),
        ("{sweep}.{id}@x", "a_b.0123456789ab@x"),
    ],
)
def test_names_of_jobs(job_name: str | None, name: str) -> None:
    profile = make_profile({} if job_name is None else {"job_name": job_name}, "x.toml")
    assert profile.job_name_of("depthrate-a_b-20260102T030405_0123456789ab", "a_b") == name


def test_keys_that_expire_are_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    assert expiring_keys_message(Profile()) == ""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "secret")
    assert "may expire while they wait" in expiring_keys_message(Profile())
    assert "secret" not in expiring_keys_message(Profile())
    assert expiring_keys_message(Profile(credentials="/keys")) == ""


def test_packs_that_share_a_gpu() -> None:
    profile = make_profile({"gpus": "a100:2", "packs_per_gpu": 4, "gpu_mem_gb": 80}, "x.toml")
    assert profile.slots == 8 and profile.worker_mem_gb("cuda") == 20
    assert [len(job) for job in bundle(range(16), [60.0] * 16, profile)] == [8, 8]


def test_pyxis_gets_the_container_from_srun(programs: Any, tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    programs(srun="")
    content = {"container": "theory#image:1", "container_runtime": "pyxis", "container_binds": ["/a", "/b:/c"]}
    script = batch_script(make_profile(content, "x.toml"), "x", 1, tmp_path)
    called = next(line for line in script.splitlines() if line.startswith("srun"))
    assert "--container-image=theory#image:1" in called and "--container-mounts=/a:/a,/b:/c" in called
    assert called.endswith(f"python3 -u -m submitit.core._submit {tmp_path}")
    with pytest.raises(
        SlurmError, match="container_runtime is 'docker', expected one of apptainer, singularity, pyxis"
    ):
        make_profile({"container_runtime": "docker"}, "x.toml")


def test_what_follows_from_a_cluster_file() -> None:
    def made(**content: Any) -> Profile:
        return make_profile(content, "x.toml")

    assert (made(gpus="a100:2").slots, made(gres="gpu:a100:2").slots, made(gres="gpu", cpus=4).slots) == (2, 2, 1)
    assert made(gres="tmpdir:2", cpus=4).slots == 4 and made(gres="gpu:3").gpu_type is None
    assert made(cpus=4, mem_per_cpu_gb=2).worker_mem_gb("cpu") == 2
    assert made(mem_gb="default").worker_mem_gb("cpu") is None
    assert made(gpus="a100:2", cpus=8, mem_gb=16).resources_text() == "2 a100 GPUs, 8 CPUs, 16 GB"
    assert made(exclusive=True, mem_gb="default").resources_text() == "whole nodes"
    pairs = [(one.account, one.qos) for one in made(account=["a", "b"], qos="x,y").alternatives()]
    assert pairs == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]


def test_packs_share_memory_and_own_gpus() -> None:
    profile = make_profile({"mem_gb": 16, "gpus": 2, "cpus": 8, "gpu_mem_gb": 80}, "x.toml")
    assert (profile.worker_mem_gb("cpu"), profile.worker_mem_gb("cuda")) == (8.0, 80.0)
    assert make_profile({"cpus": 4}, "x.toml").worker_mem_gb("cpu") == 1.0
    assert make_profile({"gpus": 1}, "x.toml").worker_mem_gb("cuda") is None


def test_the_example_is_a_profile() -> None:
    profile = load_profile(str(ROOT / "slurm" / "example.toml"))
    assert (profile.gpus, profile.cpus, profile.mem_gb, profile.walltime_min) == (1, 4, 16.0, 240)
    commented = [
        line[2:].replace("# ", "", 1) if line.startswith("# # ") else line[2:]
        for line in (ROOT / "slurm" / "example.toml").read_text().splitlines()
        if line.startswith("# ") and " = " in line
    ]
    assert len(commented) > 10
    for line in commented:
        import tomllib

        make_profile(tomllib.loads(line), line)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"partion": "gpu"}, "unknown key 'partion'. Did you mean 'partition'?"),
        ({"gpus": "one"}, "gpus is 'one', expected an integer"),
        ({"gpus": True}, "gpus is True, expected an integer"),
        ({"gpus": -1}, "gpus is -1, expected 0 to 64"),
        ({"gpu_mem_gb": 0}, "gpu_mem_gb is 0.0, expected 0.1 to 10000"),
        ({"walltime_min": 1.5}, "walltime_min is 1.5, expected an integer"),
        ({"mem_gb": "4G"}, "mem_gb is '4G', expected a number"),
        ({"partition": ""}, "partition is '', expected printable characters"),
        ({"folder": "/a\nb"}, r"folder is '/a\nb', expected printable characters"),
        ({"folder": "~nobody-here/jobs"}, "folder is '~nobody-here/jobs', which names an unknown user"),
        ({"signal_s": 60, "walltime_min": 1}, "signal_s is 60, expected less than walltime_min, which is 1 min (60 s)"),
        ({"signal_s": 7200}, "signal_s is 7200, expected less than walltime_min, which is 60 min"),
        ({"failed_start_s": 120, "walltime_min": 2}, "failed_start_s is 120, expected less than walltime_min"),
        ({"setup": [1]}, "setup is [1], expected a list of strings"),
        ({"extra": ["-p gpu"]}, "extra has '-p gpu', expected a long option of sbatch"),
        ({"extra": {"array": "0-3"}}, "extra sets --array, which depthrate sets itself"),
        ({"extra": 3}, "extra is 3, expected a list"),
        ({"gpus": "a100"}, "gpus is 'a100', expected an integer, or a type and a number such as 'a100:2'"),
        ({"gpus": 1, "gres": "gpu:2"}, "gres and gpus both request GPUs"),
        ({"mem_gb": 4, "mem_per_cpu_gb": 1}, "mem_gb and mem_per_cpu_gb are mutually exclusive"),
        ({"exclusive": 1}, "exclusive is 1, expected true or false"),
        ({"gpu_type": "a100"}, "unknown key 'gpu_type'"),
        ({"account": []}, "account is [], expected a string"),
        ({"scratch": "scratch"}, "scratch is 'scratch', expected an absolute path. It may start with a variable"),
        ({"scratch": "./tmp/$USER"}, "scratch is './tmp/$USER', expected an absolute path"),
        ({"data_cache": "../data"}, "data_cache is '../data', expected an absolute path"),
        ({"partition_by_plugin": "gpu"}, "partition_by_plugin is 'gpu', expected true or false"),
        ({"job_name": "p42"}, "job_name is 'p42', expected letters, digits and .:=+@_- with {id}"),
        ({"job_name": "p42 {id}"}, "job_name is 'p42 {id}', expected letters"),
        ({"job_name": "{id},{sweep}"}, "job_name is '{id},{sweep}', expected letters"),
        ({"job_name": "{user}-{id}"}, "job_name is '{user}-{id}', expected letters"),
    ],
)
def test_a_wrong_cluster_file_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(SlurmError, match="x.toml") as caught:
        make_profile(content, "x.toml")
    assert message in str(caught.value)


def test_a_cluster_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match=r"missing\.toml: .*slurm/example\.toml"):
        load_profile(str(tmp_path / "missing.toml"))
    (tmp_path / "bad.toml").write_text("gpus: 1")
    with pytest.raises(SlurmError, match="is not TOML"):
        load_profile(str(tmp_path / "bad.toml"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "gpu"}, "partition is 'gpu', which this cluster does not have. Set it to one of"),
        ({"partition": "off"}, "partition off is not up"),
        ({"walltime_min": 121}, "walltime_min is 121, but partition main allows 120 minutes"),
        ({"gpus": 3}, "gpus is 3, but the largest node of partition main has 2"),
        ({"mem_gb": 16.5}, "mem_gb is 16.5, but the largest node of partition main has 16"),
        (
            {"mem_per_cpu_gb": 9, "cpus": 2},
            "mem_per_cpu_gb times cpus is 18, but the largest node of partition main has 16",
        ),
        ({"gpus": 1, "gpu_type": "a100"}, "gpus is a100:1, but the nodes of partition main have v100:2"),
        ({"constraint": "intel"}, "constraint names 'intel', but the features of nodes in partition main are: none"),
        ({"partition": "long", "constraint": "[80gb|amd*2]"}, "constraint names 'amd'"),
        ({"partition": "main,off", "walltime_min": 121}, "partition main allows 120 minutes, and partition off is"),
    ],
)
def test_limits(changes: dict[str, Any], message: str) -> None:
    LIMITS.check(Profile(), 2000)
    with pytest.raises(SlurmError) as caught:
        LIMITS.check(Profile(**changes), 1)
    assert message in str(caught.value)


def test_one_of_several_partitions_is_enough() -> None:
    LIMITS.check(Profile(partition="main,long", walltime_min=121), 1)
    LIMITS.check(Profile(partition="long", constraint="intel&80gb"), 1)


def test_a_plugin_may_choose_any_partition() -> None:
    LIMITS.check(Profile(partition="auto", partition_by_plugin=True, walltime_min=121, constraint="intel"), 1)
    with pytest.raises(SlurmError, match=r"gpus is 3, but .* partition main has 2, and .* partition long"):
        LIMITS.check(Profile(partition_by_plugin=True, gpus=3), 1)
    with pytest.raises(SlurmError, match="If the site's plugin chooses it, set partition_by_plugin = true"):
        LIMITS.check(Profile(partition="auto"), 1)


def test_too_many_jobs() -> None:
    with pytest.raises(SlurmError, match=r"2001 jobs exceed .*MaxJobCount=2000"):
        LIMITS.check(Profile(), 2001)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("30", 30), ("1:30", 1.5), ("2:00:00", 120), ("1-00:00:00", 1440), ("7-12", 7 * 1440 + 720), ("UNLIMITED", None)],
)
def test_durations(text: str, minutes: float | None) -> None:
    assert parse_minutes(text) == minutes


def test_limits_are_read_from_the_cluster(programs: Any) -> None:
    script = """\
case "$*" in
"show config") printf 'ClusterName             = big\\nMaxArraySize            = 1001\\nMaxJobCount             = 10000\\n';;
*node) echo 'NodeName=a1 CPUTot=64 RealMemory=512000 AvailableFeatures=a100,ib Gres=gpu:a100:4,tmpdir:1 Partitions=gpu,all';;
*partition) echo 'PartitionName=gpu Default=NO MaxTime=2-00:00:00 State=UP'
            echo 'PartitionName=all Default=YES MaxTime=UNLIMITED State=UP';;
esac
"""
    programs(scontrol=script)
    limits = read_limits()
    assert (limits.cluster, limits.array_size, limits.max_jobs) == ("big", 1000, 10000)
    gpu = limits.partition_of(Profile(partition="gpu"))
    assert (gpu.max_min, gpu.cpus, gpu.mem_gb, gpu.gpus) == (2880, 64, 500.0, 4)
    assert gpu.gpu_types == {"a100": 4} and gpu.features == {"a100", "ib"}
    assert limits.partition_of(Profile()).name == "all"


def test_states_of_an_array(programs: Any) -> None:
    widths = [int(column.partition(":")[2]) for column in job_states._COLUMNS]
    rows = [
        ("7", "0", "8", "RUNNING", "0", "n1", "None", "0", "N/A", "N/A", "a"),
        ("7", "1", "9", "PENDING", "2", "", "Priority", "0", "N/A", "N/A", "a"),
        ("12", "N/A", "12", "FAILED", "0", "n2", "NonZeroExitCode", "28928", "N/A", "2026-01-02T03:04:05", "b"),
    ]
    lines = ["".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in rows]
    programs(squeue="; ".join(f"echo '{line}'" for line in lines))
    assert squeue_states(["7", "12"]) == {
        "7_0": JobState("RUNNING", 0, "n1", "None", 0, None, "a"),
        "7_1": JobState("PENDING", 2, "", "Priority", 0, None, "a"),
        "12": JobState(
            "FAILED", 0, "n2", "NonZeroExitCode", 113, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp(), "b"
        ),
    }
    assert squeue_states(["12"])["12"].failed_in_setup
    programs(squeue="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert squeue_states(["7"]) == {}
    lines = ["7_0|CANCELLED by 0|None assigned|0:15|Unknown|Unknown", "7_1|TIMEOUT|n2|0:0|Unknown|2026-01-02T03:04:05"]
    programs(sacct="; ".join(f"echo '{line}'" for line in lines))
    states = sacct_states(["7"])
    assert [(s.phase, s.kind) for s in states.values()] == [("over", "cancelled"), ("over", "timeout")]
    assert [s.node for s in states.values()] == ["", "n2"]
    assert JobState("NEW_IN_25").phase == "running", "what we do not know is not given up"


def test_a_scheduler_that_is_away(programs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(squeue="echo error >&2; echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(SlurmError, match="squeue .* failed with code 1: Unable to contact slurm controller"):
        squeue_states(["7"])
    with pytest.raises(SlurmError, match="sbank is not on the PATH"):
        run_command(["sbank"])


def test_bundles_fill_jobs_longest_first() -> None:
    profile = Profile(walltime_min=100, job_min=10, array_parallelism=2)
    costs = [60.0 * minutes for minutes in (1, 2, 3, 9, 4, 5, 8, 1)]
    jobs = bundle(range(8), costs, profile)
    lengths = sorted(sum(costs[pack] for pack in job) / 60 for job in jobs)
    assert sorted(pack for job in jobs for pack in job) == list(range(8))
    assert len(jobs) == 4 and lengths[-1] <= 10 and lengths[0] >= 6
    assert all([costs[pack] for pack in job] == sorted((costs[pack] for pack in job), reverse=True) for job in jobs)


def test_few_jobs_use_every_node() -> None:
    profile = Profile(job_min=30, array_parallelism=8)
    assert [len(job) for job in bundle(range(200), [0.1] * 200, profile)] == [25] * 8
    assert len(bundle(range(3), [0.1] * 3, profile)) == 3
    assert [len(job) for job in bundle(range(64), [None] * 64, profile)] == [2] * 32, "four rounds if costs are unknown"
    assert len(bundle(range(5), [1.0, None, 1.0, 1.0, 1.0], Profile(job_min=0))) == 5
    assert len(bundle(range(5), [1.0] * 5, Profile(job_min=0))) == 5


@pytest.mark.parametrize(
    ("lines", "code", "message"),
    [
        (["true", 'if [ -n "$NOPE" ]; then', "  false", "fi", '[ -n "$NOPE" ] && false'], 0, ""),
        (["nonesuch --load", "echo not reached"], 113, "a setup line ended with code 127: nonesuch --load"),
        (["source ./ends_well.sh"], 0, ""),
        (["source ./ends_badly.sh"], 113, "a setup line ended with code 3: source ./ends_badly.sh"),
        (["f() { false; true; }", "f", "g() { return 4; }", "g"], 113, "a setup line ended with code 4: return 4"),
    ],
)
def test_failing_setup_line_ends_the_job(tmp_path: Path, lines: list[str], code: int, message: str) -> None:
    (tmp_path / "ends_well.sh").write_text("false\ntrue\n")
    (tmp_path / "ends_badly.sh").write_text("true\n(exit 3)\n")
    script = "\n".join(
        [
            *sbatch_parameters(Profile(setup=tuple(lines), failed_start_s=0), "x", tmp_path)["setup"],
            "false",
            "echo reached",
        ]
    )
    (tmp_path / "job.sh").write_text(script)
    done = subprocess.run(["bash", "job.sh"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code and message in done.stderr and "not reached" not in done.stdout
    assert (done.stdout == "reached\n") == (code == 0), "what follows the setup lines is not held to that"


@pytest.mark.parametrize(
    ("setup", "code", "seconds", "pauses"),
    [
        (("false",), 0, 0, True),
        (("exit 7",), 0, 0, True),
        ((), 1, 0, True),
        ((), 1, 30, False),
        ((), 0, 0, False),
        ((), 143, 0, False),
    ],
)
def test_failing_job_holds_its_node(
    programs: Any, tmp_path: Path, setup: tuple[str, ...], code: int, seconds: int, pauses: bool
) -> None:
    """The cause is a setup line, Python or a missing file system, not a job that receives SIGTERM."""
    pytest.importorskip("submitit")
    programs(srun=f"exit {code}", sleep=f'echo "$@" > {tmp_path}/pause')
    (tmp_path / "jobs").mkdir()
    profile = Profile(setup=(f"SECONDS={seconds}", *setup), failed_start_s=20)
    (tmp_path / "job.sh").write_text(batch_script(profile, "x", 1, tmp_path / "jobs"))
    (tmp_path / "jobs" / work_file("0")).touch()
    done = subprocess.run(["bash", tmp_path / "job.sh"], check=False)
    assert (done.returncode != 0) == bool(setup or code)
    assert all_jobs_ended(tmp_path / "jobs") == (done.returncode == 0), "a killed job may be requeued"
    assert (tmp_path / "pause").exists() == pauses
    if pauses:
        assert 15 <= int((tmp_path / "pause").read_text()) <= 20


@pytest.mark.parametrize(
    ("code", "state", "requested"),
    [(114, "RUNNING", ["requeue 5_3"]), (114, "CANCELLED", []), (0, "RUNNING", []), (1, "RUNNING", [])],
)
def test_the_batch_script_queues_a_container_again(
    programs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, state: str, requested: list[str]
) -> None:
    pytest.importorskip("submitit")
    programs(
        srun=f"kill -TERM $PPID; exit {code}",  # a preemption tells the script as well
        scontrol=f'if [ $1 = requeue ]; then echo "$@" >> {tmp_path}/asked; else echo "JobId=9 JobState={state} X"; fi',
        sleep="true",
    )
    for name, value in {"JOB_ID": "9", "ARRAY_JOB_ID": "5", "ARRAY_TASK_ID": "3"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "job.sh").write_text(batch_script(Profile(container="x.sif", failed_start_s=0), "x", 2, tmp_path / "j"))
    done = subprocess.run(["bash", tmp_path / "job.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ((tmp_path / "asked").read_text().splitlines() if requested else []) == requested
    assert (tmp_path / "asked").exists() == bool(requested)


@pytest.mark.parametrize("setup_fails", [True, False])
def test_only_a_scratch_folder_of_ours_is_removed(
    programs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setup_fails: bool
) -> None:
    pytest.importorskip("submitit")
    programs(srun='touch "$TMPDIR/left"; echo "$TMPDIR"')
    precious = tmp_path / "precious"
    precious.mkdir()
    monkeypatch.setenv("TMPDIR", str(precious))
    monkeypatch.setenv("scratch_of_job", str(precious))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    setup = (f"ls -d {tmp_path}/scratch/*", "false") if setup_fails else ()
    profile = Profile(scratch=f"{tmp_path}/scratch", setup=setup, failed_start_s=0)
    (jobs / "job.sh").write_text(batch_script(profile, "x", 1, jobs))
    done = subprocess.run(["bash", jobs / "job.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == (113 if setup_fails else 0), done.stderr
    assert done.stdout == ("" if setup_fails else f"{tmp_path}/scratch/depthrate-7\n")
    assert precious.is_dir() and not list(tmp_path.glob("scratch/*"))


def test_slots_fill_before_new_jobs() -> None:
    profile = Profile(gpus=8, cpus=16, walltime_min=240)
    assert [len(job) for job in bundle(range(64), [600.0] * 64, profile)] == [8] * 8
    assert share_of_slots_used(range(64), [600.0] * 64, profile) == 1
    assert [len(job) for job in bundle(range(64), [None] * 64, profile)] == [8] * 8
    assert [len(job) for job in bundle(range(10), [600.0] * 10, profile)] == [8, 2]
    assert share_of_slots_used(range(10), [600.0] * 10, profile) == 10 / 16
    assert [len(job) for job in bundle(range(20), [1.0] * 20, Profile(gpus=8, job_min=0))] == [8, 8, 4]
    assert share_of_slots_used([], [], profile) is None


def test_long_pack_leaves_no_empty_slot() -> None:
    profile = Profile(gpus=4, walltime_min=600, job_min=200, array_parallelism=2)
    costs = [9000.0, *[600.0] * 14]
    first, second = bundle(range(15), costs, profile)
    assert 0 in first and len(first) >= 7 and len(second) >= 7
    share = share_of_slots_used(range(15), costs, profile)
    assert share is not None and 0.3 < share < 0.5, "it waits for the long one"


@pytest.mark.parametrize(
    ("python", "problem"),
    [("/nonesuch/python", "No such file"), ("false", ""), (f"{sys.executable} -I -S", "No module named 'depthrate'")],
)
def test_a_python_without_depthrate_is_refused(python: str, problem: str) -> None:
    with pytest.raises(SlurmError, match=f"python is .{python}., expected a Python with (?s:.*){problem}"):
        check_python(Profile(python=python))
    check_python(Profile(python=python, setup=("module load python",)))
    check_python(Profile(python=python, container="image.sif"))


def test_the_python_of_the_launch_is_accepted() -> None:
    pytest.importorskip("submitit")
    check_python(Profile(python=sys.executable))
