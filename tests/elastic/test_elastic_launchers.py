"""What an elastic launcher tells a rank that comes back, and what such a rank leaves behind."""

import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import parse_args

from wirebench.errors import UserError
from wirebench.training.elastic import launchers
from wirebench.training.elastic.torchrun import AS_MODULE, _by_path, _run


@pytest.mark.parametrize(
    ("engine", "environment", "kind"),
    [
        ("torch", {"TORCHELASTIC_RUN_ID": "mine"}, launchers.TorchElastic),
        ("horovod", {"HOROVOD_ELASTIC": "1"}, launchers.HorovodElastic),
        ("horovod", {"TORCHELASTIC_RUN_ID": "mine"}, type(None)),
        ("torch", {}, type(None)),
        ("local", {}, type(None)),
    ],
)
def test_which_launchers_start_ranks_anew(engine: str, environment: dict[str, str], kind: type) -> None:
    mine: Any = SimpleNamespace(name=engine)
    assert type(launchers.launcher_of(mine, environment)) is kind


@pytest.mark.parametrize(
    ("words", "started"),
    [
        (f"--nnodes 2 {AS_MODULE} -m x", f"--nnodes 2 {AS_MODULE} -m x"),
        ("--no-python env -m x", "--no-python env -m x"),
        ("--nproc-per-node 2 -m json.tool a b=1", f"--nproc-per-node 2 {AS_MODULE} json.tool a b=1"),
        ("--rdzv-id json -m json", f"--rdzv-id json {AS_MODULE} json"),
        ("--module json --module", f"{AS_MODULE} json --module"),
    ],
)
def test_a_module_is_run_by_a_script_of_ours(words: str, started: str) -> None:
    """A forked rank can be a script's path alone."""
    given = words.split()
    assert _by_path(given, parse_args(given)) == started.split()


def test_a_module_that_is_nowhere_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^-m: no module 'no_such\.job' can be found"):
        _by_path(["-m", "no_such.job"], parse_args(["-m", "no_such.job"]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("no_such.py", r"^no_such\.py: no such file$"),
        (f"--nproc-per-node x {AS_MODULE}", "^torchrun refuses its options: .* x$"),
        (f"--nnodes x {AS_MODULE}", "^torchrun refuses its options: .* 'x'$"),
    ],
)
def test_what_torchrun_cannot_start_is_one_line(words: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        _run(words.split())


@pytest.mark.parametrize(("ends", "code", "said"), [(3, 1, "exitcode  : 3 (pid: 4711)"), (2, 2, "rank 1 ended with")])
def test_a_rank_that_fails_is_reported_without_our_traceback(
    ends: int, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(words: list[str]) -> None:
        raise ChildFailedError("job", {1: ProcessFailure(0, 4711, ends, "no such file")})

    monkeypatch.setattr(run, "main", fail)
    assert _run([AS_MODULE]) == code
    told = capsys.readouterr().err
    assert said in told and "Traceback" not in told
    assert len(told.splitlines()) == 1 or ends != 2, "what a rank refused it has said itself"


def test_a_rank_asks_horovod_for_its_next_place() -> None:
    asked: list[str] = []

    class Rendezvous(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"-1,-1,-1,-1,-1,-1" if "gone" in self.path else b"2,3,0,1,2,3")

        def log_message(self, *words: object) -> None:
            """Quietly."""

    server = HTTPServer(("127.0.0.1", 0), Rendezvous)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    told = {
        "HOROVOD_HOSTNAME": "h2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_port),
    }  # fmt: skip
    assert launchers.next_place(told) == {
        "HOROVOD_RANK": "2", "HOROVOD_SIZE": "3", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": "2", "HOROVOD_CROSS_SIZE": "3",
    }  # fmt: skip
    assert launchers.next_place({**told, "HOROVOD_HOSTNAME": "gone"}) == {}
    assert asked == ["/rank_and_size/h2:0", "/rank_and_size/gone:0"]
    server.shutdown()
    server.server_close()
    assert launchers.next_place(told) == {}


def test_connections_do_not_outlive_a_rank_that_becomes_another_program() -> None:
    pipe = os.pipe()
    os.set_inheritable(pipe[1], True)
    launchers.close_at_exec()
    assert not os.get_inheritable(pipe[1])
    for number in pipe:
        os.close(number)
