"""The batch script of a job: sbatch options, and the lines of bash around depthrate's program.

submitit writes the script. This module supplies the lines before and after its call of srun. submitit's public functions write
a script and call sbatch in one step, but `slurm/submit.py` calls sbatch itself, and `plan` only prints the script. So
`batch_script` uses a private method, whose result `tests/slurm/test_profile.py` checks.
"""

import contextlib
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from depthrate.slurm.errors import SlurmError
from depthrate.slurm.job_states import SETUP_FAILED_CODE, JobState
from depthrate.slurm.profile import KEY_VARIABLES, Profile, parse_gpu_gres

DEFAULT_ARRAY_LIMIT = 10_000
"""Number of an array's jobs that run at the same time if the profile sets no limit."""
MEGABYTES = 1024
"""Megabytes per gigabyte, as SLURM counts memory."""
REQUEUE_CODE = 114
"""Exit code of depthrate's program in a container, which requests a requeue from the batch script."""
_FOLDERS_PER_JOB = (("TMPDIR", "scratch"), ("DEPTHRATE_DATA_CACHE", "data_cache"))
"""(variable in the batch script, key of the profile) for each folder whose path is known only in a job."""


PYTHON_TIMEOUT_S = 60.0
START_MARKER = "DEPTHRATE_START_MARKER"
"""Variable of a job with the path of the file that depthrate's program creates when it starts."""
FAILED_STARTS = "failed_starts"
"""Folder below a job folder. A batch script whose job fails before depthrate starts writes a file in it."""


def read_failed_starts(folder: Path) -> Iterator[tuple[str, JobState, str]]:
    """Yield (job, state, last lines of stderr) of the jobs of a folder that failed before depthrate started in them.

    SLURM may list these jobs as running for `failed_start_s` seconds more.
    """
    with contextlib.suppress(OSError, ValueError):
        for path in (folder / FAILED_STARTS).glob("*-*[0-9]"):
            job_id, _, restarts = path.name.rpartition("-")
            head, _, stderr = path.read_text(errors="replace").partition("\n")
            code, _, node = head.partition(" ")
            yield job_id, JobState("FAILED", int(restarts), node, exit_code=int(code)), stderr


def all_jobs_ended(folder: Path) -> bool:
    """Return whether each job of a folder has ended successfully. A killed or requeued job leaves no end marker."""
    names = {path.stem for path in folder.glob(work_file("*"))}
    return bool(names) and names == {path.stem for path in folder.glob(_ended_marker("*"))}


def _ended_marker(index: str) -> str:
    return f"work_{index}.ended"


def sbatch_parameters(profile: Profile, name: str, folder: Path, exclude: Sequence[str] = ()) -> dict[str, Any]:
    """Return submitit's parameters for a profile."""
    profile = profile.alternatives()[0]
    gpus = f"{profile.gpu_type}:{profile.gpus}" if profile.gpu_type else profile.gpus or None
    excluded = sorted({*profile.exclude, *exclude})
    return {
        "job_name": name,
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "constraint": profile.constraint,
        "exclude": ",".join(excluded) or None,
        "exclusive": profile.exclusive or None,
        "gpus_per_node": None if parse_gpu_gres(profile.gres) else gpus,
        "gres": profile.gres,
        "cpus_per_task": profile.cpus,
        "mem": _megabytes(profile.mem_gb),
        "mem_per_cpu": _megabytes(profile.mem_per_cpu_gb),
        "time": profile.walltime_min,
        "array_parallelism": profile.array_parallelism or DEFAULT_ARRAY_LIMIT,
        "signal_delay_s": profile.warning_s,
        "wckey": None,
        "setup": [
            *_exit_trap(profile, folder),
            *_credentials(profile),
            *_setup(profile),
            "export PYTHONSAFEPATH=1",  # a user's tasks.py in the working folder must not shadow depthrate's modules
            f"export DEPTHRATE_WARNING_S={profile.warning_s}",
            *_environment(profile),
            "export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1",
            "unset SLURM_EXPORT_ENV",  # with --export=NONE srun would drop the variables set above
            _link_work_file(folder),
        ],
        "teardown": _teardown(profile),
        # depthrate requeues jobs, which SLURM must allow
        "additional_parameters": {"requeue": True, **profile.extra},
        # srun does not inherit the number of CPUs from sbatch
        "srun_args": [f"--cpus-per-task={profile.cpus}", *_pyxis(profile)],
    }


def _megabytes(gb: float | None) -> str | None:
    return None if gb is None else f"{round(gb * MEGABYTES)}M"


def _setup(profile: Profile) -> list[str]:
    """Return the setup lines inside a trap, so that the first line that fails ends the job with a message.

    Only the exit status of the line counts, not failures inside a sourced file or a function.
    """
    if not profile.setup:
        return []
    report = 'echo "a setup line ended with code $code: $BASH_COMMAND" >&2'
    trap = f"code=$?; if ((${{#BASH_SOURCE[@]}} == 1)); then {report}; exit {SETUP_FAILED_CODE}; fi"
    return [f"trap '{trap}' ERR", *profile.setup, "trap - ERR"]


def _credentials(profile: Profile) -> list[str]:
    """Return the lines that make S3 tools read their keys from the credentials file when the job starts."""
    if profile.credentials is None:
        return []
    path = shlex.quote(str(Path(profile.credentials).expanduser().absolute()))
    return [f"unset {' '.join(KEY_VARIABLES)}", f"export AWS_SHARED_CREDENTIALS_FILE={path}"]


def _environment(profile: Profile) -> list[str]:
    """Return the lines that pass the profile to depthrate's program as environment variables."""
    lines = []
    if profile.packs_per_gpu > 1:
        lines.append(f"export DEPTHRATE_PACKS_PER_GPU={profile.packs_per_gpu}")
    if profile.scratch is not None:
        lines += [
            f'export TMPDIR="{profile.scratch}/depthrate-$SLURM_JOB_ID"',
            f'mkdir -p -m 700 "$TMPDIR" || exit {SETUP_FAILED_CODE}',
            'scratch_of_job="$TMPDIR"',
        ]
    if profile.data_cache is not None:
        lines += [f'export DEPTHRATE_DATA_CACHE="{profile.data_cache}"', 'mkdir -p "$DEPTHRATE_DATA_CACHE"']
    if profile.container is not None:  # without SLURM's commands the program cannot query its time limit
        lines.append(f"export DEPTHRATE_ENDS_AT=$((EPOCHSECONDS + {60 * profile.walltime_min}))")
        # SIGTERM must end the program but not the script, whose last lines may request a requeue.
        lines.append("trap : TERM")
    return lines


def _exit_trap(profile: Profile, folder: Path) -> list[str]:
    """Return the exit trap of the batch script: clean up, report a failed start and delay its end, write the end marker."""
    lines = []
    if profile.scratch is not None:  # not through TMPDIR, which names a different folder until the script has set it
        lines.append('[ -z "$scratch_of_job" ] || rm -rf -- "$scratch_of_job"')
    lines += [
        f'if ((code > 0 && code < 128)) && [ ! -e "${START_MARKER}" ]; then',
        "  job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}",
        f'  job=${{job:-$SLURM_JOB_ID}} report="$here/{FAILED_STARTS}/$SLURM_JOB_ID.new"',
        '  { echo "$code $SLURMD_NODENAME"; tail -qc 2000 "$here/$job"_*log.err; } > "$report"',
        f'  mv "$report" "$here/{FAILED_STARTS}/$job-${{SLURM_RESTART_COUNT:-0}}"',
        "fi",
    ]
    lines.append(f'((code)) || touch "$here/{_ended_marker("${SLURM_ARRAY_TASK_ID:-0}")}"')
    min_s = profile.failed_start_s
    lines.append(f"((code == 0 || code >= 128 || SECONDS >= {min_s})) || sleep $(({min_s} - SECONDS))")
    body = [f"  {line}" for line in lines]
    begin = ["scratch_of_job=", f"here={shlex.quote(str(folder))}"]
    begin.append(f'export {START_MARKER}="$here/begun-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}"')
    return [*begin, "depthrate_ends() {", "  code=$?", *body, "}", "trap depthrate_ends EXIT"]


def _teardown(profile: Profile) -> list[str] | None:
    """Return the lines after srun, which requeue the job if a container without SLURM's commands exits with `REQUEUE_CODE`."""
    if profile.container is None:
        return None
    return [
        "code=$?",
        f"if ((code == {REQUEUE_CODE})); then",
        "  job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}",
        "  job=${job:-$SLURM_JOB_ID}",
        '  state=$(scontrol --oneliner show job "$job")',
        "  case $state in",
        "    *JobState=CANCELLED*|*JobState=COMPLETING*) ;;",
        '    *) scontrol requeue "$job" && sleep 120 ;;',  # a job that exits before its requeue counts as completed
        "  esac",
        "fi",
        "exit $code",
    ]


def _pyxis(profile: Profile) -> list[str]:
    """Return srun's options for a container of the pyxis plugin."""
    if profile.container is None or profile.container_runtime != "pyxis":
        return []
    mounts = ",".join(bind if ":" in bind else f"{bind}:{bind}" for bind in profile.container_binds)
    return [f"--container-image={profile.container}", *([f"--container-mounts={mounts}"] if mounts else [])]


def python_command(profile: Profile) -> str | None:
    """Return the command that starts Python in a job or its container, or None for the launch's Python."""
    if profile.container is None:
        return profile.python
    python = profile.python or "python3"
    if profile.container_runtime == "pyxis":
        return python
    options = [*(["--nv"] if profile.gpus else []), *(f"--bind={bind}" for bind in profile.container_binds)]
    binds = "".join(f' --bind="${name}"' for name, key in _FOLDERS_PER_JOB if getattr(profile, key) is not None)
    command = shlex.join([profile.container_runtime, "exec", *options])
    return f"{command}{binds} {shlex.quote(profile.container)} {python}"


def check_python(profile: Profile) -> None:
    """Check that the profile's Python finds depthrate's program, unless a container or the setup lines provide it.

    Raises:
        SlurmError: It does not.
    """
    if profile.python is None or profile.container is not None or profile.setup:
        return
    command = f"PYTHONSAFEPATH=1 {profile.python} -c 'import depthrate, submitit'"  # read by bash, as in a job
    try:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=PYTHON_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return  # a slow file system is no reason to refuse: a job that fails to start is reported at once
    if done.returncode:
        raise SlurmError(
            f"python is {profile.python!r}, expected a Python with depthrate[slurm]: {done.stderr.strip()[-200:]}. Set a path "
            "that all nodes see, or add the setup lines that provide it."
        )


def batch_script(profile: Profile, name: str, num_jobs: int, folder: Path, exclude: Sequence[str] = ()) -> str:
    """Return the batch script for sbatch. `plan` prints it too.

    Raises:
        SlurmError: If submitit is not installed, or this node cannot submit jobs.
    """
    submitit = import_submitit()
    try:
        executor = submitit.SlurmExecutor(folder=folder, python=python_command(profile))
    except RuntimeError as error:
        raise SlurmError(f"{error}. Log in to a submit node.") from None
    executor.update_parameters(**sbatch_parameters(profile, name, folder, exclude))
    if num_jobs > 1:
        executor.parameters["map_count"] = num_jobs
    text: str = executor._make_submission_file_text(executor._submitit_command_str, "")
    return text


def work_file(index: str) -> str:
    """Return the name of the file with the work of the array's job with this index."""
    return f"work_{index}.pkl"


def _link_work_file(folder: Path) -> str:
    """Return the line of bash that links a job's work file to the name that submitit expects."""
    name = "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}_submitted.pkl"
    return f'ln -sf "{work_file("${SLURM_ARRAY_TASK_ID:-0}")}" {shlex.quote(str(folder))}/"{name}"'


def import_submitit() -> ModuleType:
    """Import submitit, which only launches to SLURM need.

    Raises:
        SlurmError: If it is not installed.
    """
    try:
        import submitit
    except ImportError as error:
        raise SlurmError(
            f"--executor slurm needs submitit ({error}). Install it on this machine: pip install 'depthrate[slurm]'"
        ) from None
    module: ModuleType = submitit
    return module
