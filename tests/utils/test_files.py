"""What is written: regular files in one piece, devices and pipes through, and links stay links."""

import contextlib
import errno
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tests.distributed.launch import CONFIG, here
from wirebench.errors import UserError
from wirebench.record import schema
from wirebench.record.archive import archive_previous_run
from wirebench.record.steps_file import open_steps
from wirebench.simulation import trace
from wirebench.topology import topology_file
from wirebench.utils import files, json_lines
from wirebench.utils.cli import check_outputs
from wirebench.utils.files import remove, write_atomically

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


class Reader(threading.Thread):
    """Reads a pipe to its end."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.content = path, b""
        self.start()

    def run(self) -> None:
        self.content = self.path.read_bytes()

    def read(self) -> bytes:
        self.join(60)
        return self.content


@pytest.mark.parametrize("through", ["itself", "a link"])
def test_a_pipe_is_written_to_and_stays(through: str, pipe: Path, tmp_path: Path) -> None:
    path = pipe if through == "itself" else tmp_path / "link"
    if path != pipe:
        path.symlink_to("pipe")
    reader = Reader(pipe)
    write_atomically(path, "content")
    assert pipe.is_fifo(), "it was replaced by a file"
    assert path.is_symlink() == (through == "a link")
    assert reader.read() == b"content"


@pytest.mark.parametrize("old", ["old", None])
def test_a_link_stays_and_what_it_points_to_is_replaced(old: str | None, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link, between = tmp_path / "elsewhere" / "file", tmp_path / "link", tmp_path / "between"
    if old is not None:
        target.write_text(old)
        kept = target.open()  # whoever reads the old file goes on reading the old file: it was replaced, not changed
    link.symlink_to("between")
    between.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink() and between.is_symlink() and not target.is_symlink()
    assert target.read_text() == "new"
    if old is not None:
        assert kept.read() == old
        kept.close()
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_what_the_shell_holds_open_is_written_to(tmp_path: Path) -> None:
    """`--json /dev/stdout > file`: a new file in its place would leave the shell's own without a name."""
    with (tmp_path / "file").open("w+b") as held:
        write_atomically(Path(f"/dev/fd/{held.fileno()}"), "content")
        assert held.read() == b"content"
        assert os.path.samestat(os.fstat(held.fileno()), (tmp_path / "file").stat())


def test_a_folder_is_no_place_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path, "content")


def test_removing_leaves_links_and_pipes(pipe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    for name in ("link", "pipe", "nothing"):
        remove(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_a_new_run_writes_to_where_its_folders_links_lead(pipe: Path, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere.json"
    (folder / "checkpoints").mkdir(parents=True)
    elsewhere.write_text("an earlier run's")
    (folder / "record.json").symlink_to(elsewhere)
    pipe.rename(folder / "steps.jsonl")
    aside = archive_previous_run(folder)
    assert aside is not None
    assert (aside / "record.json").read_text() == "an earlier run's" and not (aside / "record.json").is_symlink()
    assert (aside / "checkpoints").is_dir()
    assert (folder / "steps.jsonl").is_fifo() and (folder / "record.json").is_symlink()
    write_atomically(folder / "record.json", "the new run's")
    assert elsewhere.read_text() == "the new run's"


def test_a_script_may_write_to_a_device_in_a_folder_that_it_may_not_change(
    pipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(dir: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    check_outputs(json=pipe)
    with pytest.raises(UserError, match="its folder cannot be written to: Permission denied"):
        check_outputs(json=tmp_path / "new")


def test_a_folder_that_takes_no_files_is_refused_before_a_long_job_also_from_root(tmp_path: Path) -> None:
    check_outputs(json=tmp_path / "new")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="--json: /proc/new: its folder cannot be written to: "):
        check_outputs(json=Path("/proc/new"))


def made(kind: str, folder: Path) -> Path:
    """Something that is no file."""
    path = folder / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with contextlib.chdir(folder):  # the address of a socket holds 107 characters
            socket.socket(socket.AF_UNIX).bind(kind)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path(kind)
    return path


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("pipe", "it is a pipe, not a file"),
        ("socket", "it is a socket, not a file"),
        ("/dev/zero", "it is a device, not a file"),
        ("/dev/null", "it is a device, not a file"),
        ("folder", "Is a directory"),
    ],
)
def test_what_is_no_file_is_not_waited_for(kind: str, why: str, tmp_path: Path, capsys) -> None:
    path = made(kind, tmp_path)
    assert here(2, [path, f"output.dir={tmp_path / 'run'}"]) == 2
    assert capsys.readouterr().err == f"error: {path}: cannot be read: {why}\n"
    for read in (trace.load, topology_file.load, lambda path: json_lines.load(path, "a", "b")):
        with pytest.raises(UserError, match=f"{why}"):
            read(path)
    if kind != "folder":
        with pytest.raises(UserError, match=why):
            schema.read(path)


@pytest.mark.parametrize(
    ("kind", "why"),
    [("/dev/full", "No space left on device"), ("socket", "No such device or address"), ("folder", "is a folder")],
)
def test_what_takes_no_output_is_refused_before_a_long_job(kind: str, why: str, tmp_path: Path, capsys) -> None:
    path = made(kind, tmp_path)
    with pytest.raises(UserError, match=f"--json: {path}: {why}"):
        check_outputs(json=path)
    if kind != "folder":
        run = tmp_path / "run"
        run.mkdir()
        (run / "record.json").symlink_to(path)
        assert here(2, [CONFIG, f"output.dir={run}"]) == 2
        assert capsys.readouterr().err == f"error: output.dir: {run / 'record.json'} cannot be written: {why}\n"


def test_a_pipe_that_nobody_reads_is_given_up(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIPE_SECONDS", 0.05)
    with pytest.raises(OSError, match="no process reads this pipe"):
        write_atomically(pipe, "x")
    with pytest.raises(OSError, match="no process reads this pipe"):
        open_steps(pipe, 0, print)
    check_outputs(json=pipe)  # a reader may come later


@pytest.mark.parametrize("kind", ["pipe", "socket", "/dev/null", "/dev/full"])
def test_a_run_needs_a_folder(kind: str, tmp_path: Path, capsys) -> None:
    path = made(kind, tmp_path)
    assert here(2, [CONFIG, f"output.dir={path}"]) == 2
    assert capsys.readouterr().err == f"error: output.dir: {path} is not a folder\n"


SOCKET = """
import multiprocessing.connection
from wirebench.utils.files import shorten_socket_folder
shorten_socket_folder()
print(multiprocessing.connection.Listener(family="AF_UNIX").address)
"""


@pytest.mark.parametrize(("more", "elsewhere"), [(0, False), (1, True), (60, True)])
def test_sockets_fit_below_a_long_temporary_folder(more: int, elsewhere: bool) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = Path(place, "a" * (75 + more - len(place) - 1))
        folder.mkdir()
        environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", SOCKET], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("/tmp/pymp-" if elsewhere else f"{folder}/pymp-")
        assert not Path(done.stdout.strip()).parent.exists() and not list(folder.iterdir())
