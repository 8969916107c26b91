"""A private, real SLURM on one machine: munge, slurmctld, slurmdbd with MariaDB, and several slurmd, without systemd.

    python -m tests.support.slurm_lab start FOLDER       # prints the variable that leads SLURM's commands to it
    python -m tests.support.slurm_lab stop FOLDER

Debian packages: slurm-wlm slurmdbd mariadb-server-core munge. Every daemon belongs to whoever starts this, listens on this
machine only, and lives below FOLDER; several can run side by side.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd")
ACCOUNT = "theory"
_SBIN = "/usr/sbin:/sbin"


def missing_programs() -> list[str]:
    """Return what has to be installed before this can run."""
    return [name for name in DAEMONS if shutil.which(name, path=f"{os.environ['PATH']}:{_SBIN}") is None]


@dataclass
class Lab:
    """A cluster of `nodes` nodes with 2 CPUs, 4000 MB and 2 pretended GPUs each, a partition `main` and a stronger `high`."""

    folder: Path
    nodes: int = 4
    cpus: int = 2

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()
        ports = self.folder / "port"
        if not ports.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            ports.write_text(str(_free_ports(20 + self.nodes)))
        self.port = int(ports.read_text())
        self.config = self.folder / "etc" / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.config), "PATH": f"{os.environ['PATH']}:{_SBIN}"}

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command inside this cluster and return what it printed."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{command}: {done.stderr or done.stdout}")
        return done.stdout

    def start(self) -> None:
        """Start what does not run yet, and wait until all nodes are ready."""
        for name in ("etc", "pid", "log", "db", "state", "munge", *(f"spool/{node}" for node in self.node_names)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._write_configuration()
        self._start_munge()
        self.start_accounting()
        self.start_controller()
        for node in self.node_names:
            self.start_node(node)
        _wait("all nodes", 30, self._are_nodes_ready)

    @property
    def node_names(self) -> list[str]:
        """Names of the nodes."""
        return [f"n{index + 1}" for index in range(self.nodes)]

    def stop(self) -> None:
        """End all jobs and daemons."""
        if self._pid("slurmctld"):
            with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
                self.run("scancel", "--user", getuser())
        for node in self.node_names:
            self.kill_node(node)
        for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            self._kill(name, signal.SIGTERM)

    def start_controller(self) -> None:
        """Start slurmctld."""
        if not self._pid("slurmctld"):
            self.run("slurmctld")
        _wait("slurmctld", 30, lambda: "UP" in self.run("scontrol", "ping", check=False))

    def reconfigure(self, **settings: object) -> None:
        """Restart slurmctld with other settings than the usual; without any, with those."""
        self.stop_controller()
        self._write_configuration()
        text = self.config.read_text()
        for name, value in settings.items():
            text = re.sub(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
        self.config.write_text(text)
        self.start_controller()

    def stop_controller(self) -> None:
        """End slurmctld; jobs run on."""
        self._kill("slurmctld", signal.SIGTERM)

    def start_accounting(self) -> None:
        """Start MariaDB and slurmdbd, and register the cluster."""
        self._start_database()
        if not self._pid("slurmdbd"):
            self.run("slurmdbd")
        _wait("slurmdbd", 30, lambda: _listens(self.port + 1))
        _wait("sacctmgr", 30, lambda: "Cluster" in self.run("sacctmgr", "list", "cluster", check=False))
        if "lab" not in self.run("sacctmgr", "--noheader", "list", "cluster", "format=cluster"):
            self.run("sacctmgr", "--immediate", "add", "cluster", "lab")
        if ACCOUNT not in self.run("sacctmgr", "--noheader", "list", "account", "format=account"):
            self.run("sacctmgr", "--immediate", "add", "account", ACCOUNT, "cluster=lab")
            self.run("sacctmgr", "--immediate", "add", "user", getuser(), f"account={ACCOUNT}", "cluster=lab")

    def limit_submitted(self, most: int | None) -> None:
        """Let the user of this lab have no more jobs than so many, waiting and running together."""
        limit = f"MaxSubmitJobs={-1 if most is None else most}"
        self.run("sacctmgr", "--immediate", "modify", "user", getuser(), "set", limit)
        listed = ["scontrol", "show", "assoc_mgr", f"users={getuser()}", "flags=assoc"]
        _wait(
            "the controller to know",
            20,
            lambda: ("MaxSubmitJobs=" + (f"{most}(" if most else " ")) in self.run(*listed),
        )

    def stop_accounting(self) -> None:
        """End slurmdbd: sacct fails, the scheduler goes on."""
        self._kill("slurmdbd", signal.SIGTERM)

    def start_node(self, node: str) -> None:
        """Start a node's slurmd."""
        if not self._pid(f"slurmd-{node}"):
            self.run("slurmd", "-N", node)

    def resume_node(self, node: str) -> None:
        """Start a node that was killed, and take it back into service."""
        self.start_node(node)
        self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        _wait(f"node {node}", 30, lambda: self._are_nodes_ready(node))

    def kill_node(self, node: str) -> None:
        """Make a node vanish, as when its power fails: slurmd, the steps, and all processes of its jobs."""
        self._kill(f"slurmd-{node}", signal.SIGKILL)
        log = str(self.folder / "log" / f"slurmd-{node}.log")
        for pid in _pids():
            if _reads(pid, "comm").strip() == b"slurmstepd" and log in _open_files(pid):
                _signal(pid, signal.SIGKILL)
        for pid in self.job_pids(node):
            _signal(pid, signal.SIGKILL)

    def job_pids(self, node: str | None = None) -> list[int]:
        """Return the processes of jobs, on one node or all."""
        ours = f"SLURM_CONF={self.config}".encode()
        where = b"SLURMD_NODENAME=" + (node or "").encode()
        found = []
        for pid in _pids():
            variables = _reads(pid, "environ").split(b"\0")
            if ours in variables and any(v == where if node else v.startswith(where) for v in variables):
                found.append(pid)
        return [pid for pid in found if pid != os.getpid()]

    def _are_nodes_ready(self, *nodes: str) -> bool:
        states = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T", check=False)
        ready = {line.split()[0] for line in states.splitlines() if line.split()[1] in ("idle", "mixed", "allocated")}
        return ready.issuperset(nodes or self.node_names)

    def _pid(self, name: str) -> int | None:
        """Return the process of a daemon that runs."""
        try:
            pid = int((self.folder / "pid" / f"{name}.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if name.partition("-")[0].encode() in _reads(pid, "cmdline") else None

    def _kill(self, name: str, number: signal.Signals) -> None:
        pid = self._pid(name)
        if pid is not None:
            _signal(pid, number)
            _wait(f"the end of {name}", 20, lambda: self._pid(name) is None)
        (self.folder / "pid" / f"{name}.pid").unlink(missing_ok=True)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "munge.key"
        if not key.exists():
            key.touch(0o600)
            key.write_bytes(os.urandom(128))
        folder.chmod(0o711)
        socket_path = folder / "munge.socket"
        if not self._pid("munged"):
            files = (f"--pid-file={self.folder}/pid/munged.pid", f"--log-file={self.folder}/log/munged.log")
            seed = f"--seed-file={folder}/munge.seed"
            self.run("munged", f"--key-file={key}", f"--socket={socket_path}", *files, seed, "--force")
        _wait("munge", 10, lambda: "MUNGE" in self.run("munge", "-n", "-S", str(socket_path), check=False))

    def _start_database(self) -> None:
        if self._pid("mariadbd"):
            return
        data = self.folder / "db"
        command = ["mariadbd", "--no-defaults", f"--user={getuser()}", f"--datadir={data}", "--skip-name-resolve"]
        command += ["--innodb-log-file-size=64M", "--innodb-buffer-pool-size=128M", "--innodb-lock-wait-timeout=900"]
        command += ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--debug-no-sync"]
        environment = {**os.environ, **self.environment}
        if not (data / "slurm_acct").is_dir():
            tables = [Path(f"/usr/share/mysql/mysql_system_tables{part}.sql").read_text() for part in ("", "_data")]
            script = "\n".join(["create database mysql;", "use mysql;", *tables, "create database slurm_acct;"])
            for _ in range(2):  # it has failed once among hundreds of runs, on a busy machine
                created = subprocess.run(
                    [*command, "--bootstrap"], input=script.encode(), env=environment, capture_output=True, check=False
                )
                if created.returncode == 0:
                    break
                shutil.rmtree(data)
                data.mkdir()
            else:
                raise RuntimeError(f"mariadbd --bootstrap failed: {created.stderr.decode()[-2000:]}")
        command += ["--skip-grant-tables", "--bind-address=127.0.0.1", f"--port={self.port + 2}"]
        command += [f"--socket={data}/m.sock", f"--pid-file={self.folder}/pid/mariadbd.pid"]
        with (self.folder / "log" / "mariadbd.log").open("ab") as log:
            subprocess.run(["setsid", "--fork", *command], env=environment, stdout=log, stderr=log, check=True)
        _wait("MariaDB", 30, lambda: _listens(self.port + 2))

    def _write_configuration(self) -> None:
        run, host, user = self.folder, socket.gethostname().partition(".")[0], getuser()
        first_job = run / "first_job"
        if not first_job.exists():
            first_job.write_text(str(int(time.time()) % 6_000_000 * 10 + 1))  # ids that no earlier lab has given
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={self.port + 10 + index} CPUs={self.cpus} "
            "RealMemory=4000 Gres=gpu:fake:2 State=UNKNOWN"
            for index, node in enumerate(self.node_names)
        )
        self.config.write_text(f"""\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={self.port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
# a job that is requeued waits as long as its credential lives
AuthInfo=socket={run}/munge/munge.socket,cred_expire=5
StateSaveLocation={run}/state
SlurmdSpoolDir={run}/spool/%n
SlurmctldPidFile={run}/pid/slurmctld.pid
SlurmdPidFile={run}/pid/slurmd-%n.pid
SlurmctldLogFile={run}/log/slurmctld.log
SlurmdLogFile={run}/log/slurmd-%n.log
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
# memory is enforced by asking each second
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
JobCompType=jobcomp/none
MailProg=/bin/true
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
ReturnToService=1
JobRequeue=1
SlurmdTimeout=5
MessageTimeout=5
SlurmctldTimeout=10
BatchStartTimeout=10
KillWait=10
CompleteWait=0
MinJobAge=60
InactiveLimit=0
Waittime=0
FirstJobId={first_job.read_text()}
MaxArraySize=101
MaxJobCount=2000
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1,default_queue_depth=1000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePass={run}/munge/munge.socket
AccountingStoragePort={self.port + 1}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=limits
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=2:00:00 State=UP PriorityTier=1 GraceTime=20
PartitionName=high Nodes=ALL Default=NO MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
""")
        # slurmd wants a character device for each GPU, and any will do
        gpus = ("/dev/zero", "/dev/full")
        lines = [f"NodeName=n[1-{self.nodes}] Name=gpu Type=fake File={device}" for device in gpus]
        (run / "etc" / "gres.conf").write_text("\n".join(lines) + "\n")
        accounting = run / "etc" / "slurmdbd.conf"
        accounting.write_text(f"""\
AuthType=auth/munge
AuthInfo=socket={run}/munge/munge.socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={self.port + 1}
SlurmUser={user}
PidFile={run}/pid/slurmdbd.pid
LogFile={run}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={self.port + 2}
StorageUser=slurm
StorageLoc=slurm_acct
CommitDelay=1
""")
        accounting.chmod(0o600)


def patience() -> float:
    """Return how many times longer than on a quiet machine everything takes now."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def _wait(what: str, seconds: float, is_so: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not is_so():
        if (took_s := time.monotonic() - began) > seconds * patience():
            raise TimeoutError(f"waited {took_s:.0f} s for {what}")
        time.sleep(0.05)


def _free_ports(count: int) -> int:
    """Return the first of so many ports that nobody has; they are below those that connections get from the system."""
    while True:
        first = random.SystemRandom().randrange(20_000, 32_000, 50)
        with contextlib.suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _reads(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _open_files(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry.path))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    lab = Lab(Path(sys.argv[2]))
    if sys.argv[1] == "start":
        lab.start()
        print(f"export SLURM_CONF={lab.config}")
    else:
        lab.stop()
