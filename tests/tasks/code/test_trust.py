"""Code runs where its user alone decides what it is, or where that very code was accepted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from depthrate.sweeps.load import load_sweep
from depthrate.tasks.code import load, trust
from depthrate.tasks.code.load import code_of_file
from depthrate.tasks.code.trust import accept, is_accepted, untrusted_reason
from depthrate.tasks.code.unpack import unpack
from depthrate.tasks.interface import TaskCode, TaskError
from depthrate.tasks.loading import code_of_task, load_task

ME, STRANGER = 65534, 65533
CHECKOUT = Path(__file__).parents[2]
LAW = """
import depthrate
import yaml

@depthrate.task(version=1)
def law(*, depth: int):
    return {"metrics": [{"layer": depth, "nc1": yaml.VALUE}]}
"""
TASK = "print(__import__('depthrate.tasks.loading').tasks.loading.load_task({name!r}).name)"

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="files of several users are made by root, with setpriv"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a task, and a module beside it."""
    (tmp_path / "lab").mkdir(mode=0o755)
    (tmp_path / "lab/law.py").write_text(LAW)
    (tmp_path / "lab/yaml.py").write_text("VALUE = 1.0\n")
    return tmp_path / "lab"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user can enter, with a task and a module beside it that are all `ME`'s."""
    place = Path(tempfile.mkdtemp(prefix="depthrate-test-"))
    made = place / "above"
    (made / "lab").mkdir(parents=True)
    (made / "lab/law.py").write_text(LAW)
    (made / "lab/yaml.py").write_text("VALUE = 1.0\n")
    for path in (place, *place.rglob("*")):
        os.chown(path, ME, ME)
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield made
    shutil.rmtree(place)


def load_as_me(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Load the task in a file as the user `ME`, who can read this Python wherever it lies."""
    words = ["setpriv", f"--reuid={ME}", f"--regid={ME}", "--clear-groups"]
    words += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    words += [sys.executable, "-c", TASK.format(name=f"{path}:law")]
    place = next(folder for folder in path.parents if folder.name.startswith("depthrate-test-"))
    home = {"HOME": str(place / "home"), "PATH": os.environ["PATH"]}
    return subprocess.run(words, cwd=CHECKOUT, env=home | environment, capture_output=True, text=True, check=False)


def strangers_module(lab: Path) -> None:
    os.chown(lab / "yaml.py", STRANGER, STRANGER)


def sticky_home(lab: Path) -> None:
    os.chown(lab, 0, 0)
    lab.chmod(0o1777)


def link_to_a_strangers_file(lab: Path) -> None:
    (lab / "yaml.py").rename(lab.parent / "theirs.py")
    os.chown(lab.parent / "theirs.py", STRANGER, STRANGER)
    (lab / "yaml.py").symlink_to("../theirs.py")


def strangers_link(lab: Path) -> None:
    (lab / "yaml.py").rename(lab / "mine.py")
    (lab / "yaml.py").symlink_to("mine.py")
    os.chown(lab / "yaml.py", STRANGER, STRANGER, follow_symlinks=False)


def link_through_a_writable_folder(lab: Path) -> None:
    (lab.parent / "open").mkdir()
    (lab.parent / "open").chmod(0o777)
    (lab / "yaml.py").rename(lab / "mine.py")
    (lab.parent / "open/link.py").symlink_to(lab / "mine.py")
    (lab / "yaml.py").symlink_to("../open/link.py")


def is_changed(name: str, mode: int) -> Callable[[Path], None]:
    return lambda lab: (lab / name).chmod(mode)


ATTACKS: list[tuple[Callable[[Path], None], str]] = [
    (strangers_module, "lab/yaml.py belongs to another user"),
    (sticky_home, "lab can be written by everybody (mode 1777)"),
    (is_changed("law.py", 0o666), "lab/law.py can be written by everybody (mode 666)"),
    (is_changed("yaml.py", 0o646), "lab/yaml.py can be written by everybody (mode 646)"),
    (is_changed("yaml.py", 0o664), "lab/yaml.py can be written by group 65534 (mode 664)"),
    (is_changed("", 0o777), "lab can be written by everybody (mode 777)"),
    (is_changed("..", 0o777), " can be written by everybody (mode 777)"),
    (is_changed("..", 0o775), " can be written by group 65534 (mode 775)"),
    (lambda lab: os.chown(lab, STRANGER, STRANGER), "lab belongs to another user (id 65533)"),
    (lambda lab: os.chown(lab.parent, STRANGER, STRANGER), " belongs to another user (id 65533)"),
    (link_to_a_strangers_file, "theirs.py belongs to another user (id 65533)"),
    (strangers_link, "lab/yaml.py belongs to another user (id 65533)"),
    (link_through_a_writable_folder, "open can be written by everybody (mode 777)"),
]


@needs_root
@pytest.mark.parametrize(
    ("attack", "words"),
    [*ATTACKS[:2], *(pytest.param(*attack, marks=pytest.mark.slow) for attack in ATTACKS[2:])],
    ids=[words for _, words in ATTACKS],
)
def test_foreign_or_linked_code_is_refused(attack: Callable[[Path], None], words: str, shared: Path) -> None:
    """It is executed before the attack, and after it refused with these words and the ways to proceed."""
    lab = shared / "lab"
    (lab / "yaml.py").write_text("raise SystemExit('executed')")
    assert "executed" in load_as_me(lab / "law.py").stderr, "it is, as long as nobody else can have written it"
    attack(lab)
    refused = load_as_me(lab / "law.py")
    assert refused.returncode == 1 and "executed\n" not in refused.stderr
    for part in (words, "was not executed: ", "chmod go-w", "depthrate trust "):
        assert part in refused.stderr


@needs_root
def test_named_link_within_own_files(shared: Path) -> None:
    (shared / "named.py").symlink_to("lab/law.py")
    assert load_as_me(shared / "named.py").stdout == "law:law\n"
    os.chown(shared / "lab/law.py", STRANGER, STRANGER)
    assert "lab/law.py belongs to another user (id 65533)" in load_as_me(shared / "named.py").stderr
    os.chown(shared / "lab/law.py", ME, ME)
    os.chown(shared / "named.py", STRANGER, STRANGER, follow_symlinks=False)
    assert "named.py belongs to another user (id 65533)" in load_as_me(shared / "named.py").stderr


@needs_root
def test_sticky_folder_permits_own_files(shared: Path) -> None:
    assert shared.parents[1].stat().st_mode & 0o1002 == 0o1002, "a test of /tmp"
    assert load_as_me(shared / "lab/law.py").stdout == "law:law\n"
    os.chown(shared / "lab/yaml.py", 0, 0)
    os.chown(shared / "lab", 0, 0)
    assert load_as_me(shared / "lab/law.py").stdout == "law:law\n"


@pytest.mark.slow
@needs_root
def test_trusted_code_runs_as_trusted(shared: Path) -> None:
    lab = shared / "lab"
    os.chown(lab / "yaml.py", STRANGER, STRANGER)
    home = shared.parent / "home"
    home.mkdir()
    os.chown(home, ME, ME)
    refused = load_as_me(lab / "law.py").stderr
    content_hash = refused.partition("depthrate trust ")[2][:32]
    kept = home / f".cache/depthrate/code/{content_hash}"
    assert str(kept) in refused and (kept / "yaml.py").read_text() == "VALUE = 1.0\n", "it can be read before"
    accepted = home / f".local/state/depthrate/accepted-code/{content_hash}"
    accepted.parent.mkdir(parents=True)
    accepted.touch()
    assert load_as_me(lab / "law.py").returncode == 1, "root's is not the user's"
    for path in (*accepted.parents[:4], accepted):
        os.chown(path, ME, ME)
    assert load_as_me(lab / "law.py").stdout == "law:law\n"
    (lab / "yaml.py").write_text("VALUE = 2.0\n")
    assert load_as_me(lab / "law.py").returncode == 1, "another one was not accepted"
    (lab / "yaml.py").write_text("VALUE = 1.0\n")
    (kept / "yaml.py").write_text("raise SystemExit('executed')")
    assert load_as_me(lab / "law.py").stdout == "law:law\n", "what was unpacked is checked before it is used"


@needs_root
def test_skipped_check_and_private_groups(shared: Path) -> None:
    (shared / "lab/law.py").chmod(0o666)
    assert load_as_me(shared / "lab/law.py", **{trust.STRICT_MODES: "off"}).stdout == "law:law\n"
    (shared / "lab/law.py").chmod(0o664)
    os.chown(shared / "lab/law.py", 0, 0)  # root's group is root's alone; nobody's is called otherwise
    assert load_as_me(shared / "lab/law.py").stdout == "law:law\n"


def test_stored_names_are_always_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trust.STRICT_MODES, "off")
    code = code_of_file(folder / "law.py")
    assert untrusted_reason(code, folder / "law.py", named=False) == []
    (folder / "yaml.py").chmod(0o666)
    assert untrusted_reason(code, folder / "law.py", named=True) == []
    reasons = untrusted_reason(code, folder / "law.py", named=False)
    assert reasons == [f"{folder}/yaml.py can be written by everybody (mode 666)"]


def test_links_in_a_circle_are_refused(folder: Path) -> None:
    code = code_of_file(folder / "law.py")
    (folder / "yaml.py").unlink()
    (folder / "yaml.py").symlink_to("yaml.py")
    reasons = untrusted_reason(code, folder / "law.py", named=True)
    assert reasons == [f"{folder}/yaml.py cannot be checked (too many symbolic links)"]


def test_a_hash_is_accepted_by_its_user_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    content_hash = "0123456789abcdef" * 2
    assert not is_accepted(content_hash)
    accept(content_hash)
    assert is_accepted(content_hash) and not is_accepted("../accepted-code/" + content_hash) and not is_accepted("")
    (tmp_path / "depthrate/accepted-code").chmod(0o777)
    assert not is_accepted(content_hash), "anybody could have written it"


@pytest.mark.usefixtures("clean_imports")
@pytest.mark.parametrize("damage", ["changed", "added", "removed", "linked", "writable"])
def test_changed_code_is_replaced(damage: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code = code_of_task(f"{folder / 'law.py'}:law")
    assert code is not None
    unpacked = unpack(code)
    assert unpacked == tmp_path / "cache/depthrate/code" / code.content_hash
    assert unpacked.stat().st_mode & 0o777 == 0o700
    before = unpacked.stat().st_ino
    assert unpack(code).stat().st_ino == before, "it is unpacked once"
    if damage == "changed":
        (unpacked / "yaml.py").write_text("VALUE = 2.0\n")
    elif damage == "added":
        (unpacked / "numpy.py").write_text("raise SystemExit")
    elif damage == "removed":
        (unpacked / "yaml.py").unlink()
    elif damage == "linked":
        (unpacked / "yaml.py").unlink()
        (unpacked / "yaml.py").symlink_to(folder / "yaml.py")
    else:
        unpacked.chmod(0o777)
    load._run_file.cache_clear()
    assert load_task(f"{folder / 'law.py'}:law").name == "law:law"
    assert unpack(code).stat().st_ino != before
    assert {path.name: path.read_bytes() for path in unpacked.iterdir() if path.is_file()} == code.contents
    assert len(list(unpacked.parent.iterdir())) == 1, "nothing is left of the damaged one"


def test_group_umask_changes_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (folder / "parts").mkdir()
    (folder / "parts/__init__.py").touch()
    (folder / "law.py").write_text(f"import parts\n{LAW}")
    (tmp_path / "cache").mkdir()
    before = os.umask(0o002)
    try:
        code = code_of_file(folder / "law.py")
        unpacked = unpack(code)
        accept(code.content_hash)
    finally:
        os.umask(before)
    assert unpacked.parent == tmp_path / "cache/depthrate/code" and unpack(code) == unpacked
    assert is_accepted(code.content_hash)


def test_many_processes_unpack_one_code(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code = code_of_file(folder / "law.py")
    written, write = threading.Barrier(8), Path.write_bytes

    def write_together(path: Path, content: bytes) -> int:
        if path.name == code.main:
            written.wait()  # until nobody has found it there
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", write_together)
    with ThreadPoolExecutor(8) as threads:
        folders = set(threads.map(lambda _: unpack(code), range(8)))
    assert folders == set((tmp_path / "cache/depthrate/code").iterdir()) and len(folders) == 1


def test_cacheless_code_is_unpacked_per_process(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache/depthrate/code").mkdir(parents=True)
    (tmp_path / "cache").chmod(0o777)  # anybody could put another folder there
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code = code_of_file(folder / "law.py")
    unpacked = unpack(code)
    assert "set XDG_CACHE_HOME" in load.how_to_accept(code)
    assert not unpacked.is_relative_to(tmp_path) and unpacked.parent.stat().st_mode & 0o777 == 0o700


def test_code_is_unpacked_although_the_cache_is_full(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "cache/depthrate/code"
    home.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code = code_of_file(folder / "law.py")
    disk = ["mount", "-t", "tmpfs", "-o", "size=4k,mode=700", "tmpfs", str(home)]
    if subprocess.run(disk, check=False).returncode:
        pytest.skip("needs the right to mount a disk")
    try:
        (home / "others").write_bytes(bytes(4096))
        unpacked = unpack(code)
        assert unpack(code) == unpacked and not unpacked.is_relative_to(tmp_path)
        assert {path.name: path.read_bytes() for path in unpacked.iterdir()} == code.contents
        assert f"{home} is full (No space left on device)" in caplog.text
        assert [path.name for path in home.iterdir()] == ["others"]
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=True)


def test_module_is_checked_before_import(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    (folder / "laws").mkdir()
    (folder / "laws/__init__.py").write_text("raise SystemExit('executed')")
    (folder / "laws/law.py").write_text(LAW)
    (folder / "laws/law.py").chmod(0o666)
    with pytest.raises(TaskError, match="laws/law.py can be written by everybody"):
        load_task("laws.law:law")


def test_an_accepted_module_is_executed_as_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.syspath_prepend(str(folder))
    (folder / "rules").mkdir()
    for name, text in (("__init__", ""), ("law", LAW.replace("yaml.VALUE", "2.0"))):
        (folder / f"rules/{name}.py").write_text(text)
    (folder / "rules/law.py").chmod(0o666)
    code = code_of_task("rules.law:law")
    assert code is not None
    accept(code.content_hash)
    check = load.require_trust

    def swapped(checked: TaskCode, main: Path) -> bool:
        trusted = check(checked, main)
        (folder / "rules/law.py").write_text("raise SystemExit('executed')")
        return trusted

    monkeypatch.setattr(load, "require_trust", swapped)
    assert load_task("rules.law:law").code == code


def test_a_sweep_in_python_is_executed_as_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "made.py"
    made = "depthrate.Sweep(name='s', task='collapse', params={'arch': 'rn1'}, grid={'depth': [2]})"
    path.write_text(f"import depthrate\n\ndef sweep():\n    return {made}\n")

    def swapped(*_: object, **__: object) -> list[str]:
        path.write_text("raise SystemExit('executed')")
        return []

    monkeypatch.setattr(load, "untrusted_reason", swapped)
    assert load_sweep(f"{path}:sweep").grid == {"depth": [2]}
