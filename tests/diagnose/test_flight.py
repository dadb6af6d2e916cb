"""wirebench diagnose --flight: the first collective at which ranks differ, of real dumps and of made-up ones."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.cli.verbs import run
from tests.distributed.forked import fork


def entry(
    number: int, name: str = "nccl:all_reduce", size: int = 8, state: str = "completed", **more: Any
) -> dict[str, Any]:
    return {
        "frames": [{"name": "all_reduce", "filename": "/x/torch/distributed/c10d.py", "line": 1},
                   {"name": "step", "filename": "/home/me/train.py", "line": 10 + number}],
        "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": name, "time_created_ns": 1000 * number,
        "input_sizes": [[size]], "input_dtypes": ["Float"], "output_sizes": [[size]], "output_dtypes": ["Float"],
        "state": state, "retired": state == "completed", "is_p2p": False, **more,
    }  # fmt: skip


def dumps(folder: Path, *ranks: list[dict[str, Any]], groups: dict[str, str] | None = None) -> list[Path]:
    paths = []
    for rank, entries in enumerate(ranks):
        ranks_of = groups or {"0": str(list(range(len(ranks))))}
        config = {group: {"name": group, "desc": "", "ranks": those} for group, those in ranks_of.items()}
        paths.append(folder / f"nccl_trace_rank_{rank}")
        paths[-1].write_bytes(pickle.dumps({"version": "2.10", "pg_config": config, "entries": entries}, protocol=2))
    return paths


def found(*paths: object) -> list[dict[str, Any]]:
    done = run("diagnose", "--json", "--flight", *paths)
    assert done.returncode == 0, done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return told


def test_a_job_that_hangs(tmp_path: Path) -> None:
    """Dumps that PyTorch has written of two ranks over Gloo, as pickles and as JSON."""
    ended = fork(
        "torch", 2, [tmp_path], tmp_path / "logs", {"TORCH_FR_BUFFER_SIZE": "100", "GLOO_SOCKET_IFNAME": "lo"},
        "tests/diagnose/hanging_job.py",
    )  # fmt: skip
    assert ended.code == 0, ended.said
    for kind in ("", ".json"):
        [only] = found(*(tmp_path / f"trace_rank_{rank}{kind}" for rank in range(2)))
        assert (only["kind"], only["ranks"]) == ("missing", [1])
        assert "Rank 1 has not called collective 3 of group 0" in only["sentence"]
        assert "all_reduce of 16 elements (Float); rank 0 waits in it" in only["sentence"]
    said = run("diagnose", "--flight", *(tmp_path / f"trace_rank_{rank}" for rank in range(2))).stdout
    assert "hanging_job.py:" in said and "rank 1: number 2, all_reduce of 8 elements (Float), over" in said


@pytest.mark.parametrize(
    ("first", "second", "kind", "ranks", "words"),
    [
        ([entry(1), entry(2, size=4, state="started")], [entry(1), entry(2, size=5, state="started")], "size", [1],
         "differ in the size of collective 2"),
        ([entry(1, state="started")], [entry(1, "nccl:broadcast", state="started")], "operation", [1],
         "broadcast of 8"),
        ([entry(1, state="started")], [entry(1, state="started", input_dtypes=["Half"])], "type", [1], "(Half)"),
        ([entry(1), entry(2, state="started")], [entry(1), entry(2, state="started")], "stuck", [0, 1], "is stuck"),
        ([entry(4), entry(5, state="scheduled")], [entry(4)], "missing", [1], "not called collective 5"),
    ],
)  # fmt: skip
def test_the_first_difference(
    first: list[dict], second: list[dict], kind: str, ranks: list[int], words: str, tmp_path: Path
) -> None:
    [only] = found(*dumps(tmp_path, first, second))
    assert (only["kind"], only["ranks"]) == (kind, ranks) and words in only["sentence"], only
    assert any("/home/me/train.py" in line and "/torch/" not in line for line in only["evidence"])


def test_a_job_that_goes_on_has_no_finding(tmp_path: Path) -> None:
    """Dumps of different times, a buffer that has lost old entries, and a rank that is in no other group."""
    other: dict[str, Any] = {"process_group": ("1", "mesh"), "pg_id": 1}
    first, second = [entry(1), entry(2), entry(3)], [entry(2), entry(3), entry(4), entry(9, **other)]
    paths = dumps(tmp_path, first, second, groups={"0": "[0, 1]", "1": "[1, 2]"})
    assert found(*paths) == []
    said = run("diagnose", "--flight", *paths).stdout
    assert "No rank waits for another" in said and "No dump of rank 2" in said


def test_a_rank_that_died_has_no_dump(tmp_path: Path) -> None:
    hung = [entry(1), entry(2, state="started")]
    paths = dumps(tmp_path, hung, hung, hung, groups={"0": "[0, 1, 2, 3]"})
    [only] = found(*paths)
    assert (only["kind"], only["ranks"]) == ("absent", [3]) and "stuck" not in only["sentence"]
    assert "Ranks 0, 1 and 2 wait in collective 2 of group 0" in only["sentence"]
    assert "there is no dump of rank 3: look first whether it still runs" in only["sentence"]


@pytest.mark.parametrize(("groups", "absent"), [({"0": "[0, 1, 2]"}, [1, 2]), ({"other": "[0]"}, [])])
def test_one_dump_alone(groups: dict[str, str], absent: list[int], tmp_path: Path) -> None:
    """Its group's ranks are known, or not."""
    paths = dumps(tmp_path, [entry(1), entry(2, state="started")], groups=groups)
    [only] = found(*paths)
    assert (only["kind"], only["ranks"]) == ("absent", absent)
    assert "Rank 0 waits in collective 2" in only["sentence"]
    assert "No rank waits" not in run("diagnose", "--flight", *paths).stdout


def test_a_call_that_others_have_forgotten(tmp_path: Path) -> None:
    """The buffer of rank 1 begins later: nothing is known of its second call."""
    paths = dumps(tmp_path, [entry(2, state="started"), entry(3)], [entry(3), entry(4)])
    said = run("diagnose", "--flight", *paths).stdout
    assert "not all is over:\nrank 0: number 2 of group 0" in said and "No rank waits" not in said, said


class Harm:
    def __reduce__(self) -> Any:
        return print, ("harm",)


BAD = {
    "a function in it": (pickle.dumps({"entries": [Harm()]}), "it names builtins.print"),
    "empty": (b"", "is empty"),
    "cut off": (pickle.dumps({"entries": [entry(1)]})[:50], "is no dump"),
    "no pickle": (b"hello", "is no dump"),
    "other JSON": (b'{"traceEvents": []}', "has no entries"),
    "bad JSON": (b'{"entries": [', "not valid JSON"),
    "no collectives": (b'{"entries": []}', "has no collectives; set TORCH_FR_BUFFER_SIZE"),
    "other entries": (b'{"entries": [{"a": 1}]}', "entries[0]: is not what a flight recorder writes"),
    "no list": (b'{"entries": [7]}', "entries[0]: is not what a flight recorder writes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_dump(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, reason = BAD[name]
    path = tmp_path / "trace_rank_0"
    path.write_bytes(content)
    done = run("diagnose", "--flight", path)
    assert done.returncode == 2 and reason in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert "harm" not in done.stdout


def test_two_dumps_of_one_rank(tmp_path: Path) -> None:
    paths = dumps(tmp_path, [entry(1)])
    done = run("diagnose", "--flight", *paths, *paths)
    assert done.returncode == 2 and "is of rank 0, as " in done.stderr
