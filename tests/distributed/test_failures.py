"""When one rank fails, all end soon, and say which one and why."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed.ends import checkpoints, losses, record
from tests.distributed.forked import fork
from tests.distributed.launch import CONFIG, ROOT, Ended, launch, slowly, started, trouble

DENSE = CONFIG.read_text().replace('"topk"\ndensity = 0.05\ndense_below = 40', '"none"')
Job = Callable[..., Ended]


def files_of_ours(said: str) -> list[str]:
    """Files of the repository that tracebacks in `said` go through; those of its environment, .venv, are not ours."""
    files = re.findall(r'File "(.+?)", line \d+', said)
    return [file for file in files if Path(file).is_relative_to(ROOT) and "/.venv/" not in file]


def check_named(ended: Ended, rank: int, others: int) -> None:
    """Each of the other ranks has said in one line that this one is lost."""
    assert ended.code != 0
    named = [line for line in ended.errors if f"lost rank {rank} (pid " in line]
    assert len(named) == others, ended.said
    assert not files_of_ours(ended.err), ended.said


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ["torch", "horovod"])
def test_a_killed_rank_under_the_builtin_synchroniser(engine: str, tmp_path: Path) -> None:
    config = tmp_path / "dense.toml"
    config.write_text(DENSE + '\n[scheduler]\nname = "builtin"\n')
    ended = fork(engine, 2, [config, f"output.dir={tmp_path / 'run'}"], tmp_path, trouble("kill", 3, 1))
    check_named(ended, rank=1, others=1)


@pytest.mark.parametrize(
    ("engine", "rounds"),
    [
        ("horovod", "p2p"),
        pytest.param("horovod", "alltoall", marks=pytest.mark.weekly),
        # torchrun gives a rank that does not listen 30 seconds.
        ("torch", "p2p"),
    ],
)
@pytest.mark.slow
def test_a_rank_that_hangs(engine: str, rounds: str, tmp_path: Path) -> None:
    """Nobody hears of it but by its silence."""
    patience = ["engine.timeout_seconds=5", f"engine.rounds={rounds}"]
    arguments = [CONFIG, f"output.dir={tmp_path / 'run'}", *patience]
    check_named(fork(engine, 3, arguments, tmp_path, trouble("hang", 3, 1)), rank=1, others=2)


@pytest.mark.parametrize("engine", ["torch", pytest.param("horovod", marks=pytest.mark.weekly)])
@pytest.mark.slow
@pytest.mark.clock
def test_a_rank_that_a_signal_has_stopped(engine: str, tmp_path: Path) -> None:
    """The others say so, leave at once and take it with them, for whose end the launcher would wait."""
    arguments = [CONFIG, f"output.dir={tmp_path / 'run'}", "engine.timeout_seconds=5"]
    ended = launch(engine, 3, arguments, tmp_path, trouble("stop", 3, 1))
    check_named(ended, rank=1, others=2)
    assert all(", which a signal has stopped at step 3 " in line for line in ended.errors), ended.said
    # torchrun would wait 30 s for the rank that no signal reaches.
    assert ended.seconds < (20 if engine == "torch" else 40), ended.said


@pytest.mark.slow
def test_a_killed_torchrun_stops_its_ranks_with_a_checkpoint(tmp_path: Path) -> None:
    """As a killed horovodrun does, which has its ranks told."""
    folder = tmp_path / "run"
    arguments = [
        CONFIG,
        f"output.dir={folder}",
        "train.checkpoint_every_steps=1000",
        "train.max_steps=0",
        "train.epochs=99",
    ]
    with started("torch", 2, arguments, tmp_path, slowly(20)) as job:
        job.until(lambda: (folder / "steps.jsonl").exists() and len(losses(folder)) > 5)
        job.process.kill()
        job.process.wait()
        assert not job.left_over()
    found = record(folder)
    assert found["status"] == "interrupted"
    assert checkpoints(folder)[-1].name == f"step-{found['steps_done']:08d}"


@pytest.mark.parametrize(
    ("engine", "kind", "job"),
    [
        pytest.param("torch", "infinite_loss", launch, marks=pytest.mark.slow),
        ("torch", "not_a_number", fork),
        pytest.param("horovod", "not_a_number", fork, marks=pytest.mark.slow),
        pytest.param("horovod", "infinite_loss", launch, marks=pytest.mark.weekly),
    ],
)
def test_divergence_on_one_rank_stops_all(engine: str, kind: str, job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = job(engine, 2, [CONFIG, f"output.dir={folder}"], tmp_path, trouble(kind, 5, 1))
    assert ended.code != 0
    assert any(line.startswith("error: rank 0: ") for line in ended.errors), ended.said
    named = re.compile(r"step 5: the gradient of layers linear\.bias to \S+ \(\d\) is not finite$")
    assert all(named.search(line) for line in ended.errors), ended.said
    assert 3 in ended.codes or re.search(r"exit with status code 3\.|exitcode  : 3 ", ended.out + ended.err)
    assert record(folder)["status"] == "diverged"
    assert checkpoints(folder)[-1].name == "step-00000004"
    assert len(losses(folder)) == 5


def test_divergence_of_one_rank_among_local_steps_stops_all_where_they_meet(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [CONFIG, f"output.dir={folder}", "data.train_size=960", "scheduler.name=outer", "scheduler.every=4"]
    ended = fork("torch", 2, [*words, "train.checkpoint_every_steps=5"], tmp_path, trouble("not_a_number", 5, 1))
    assert set(ended.codes) == {3}, ended.said
    assert all(line.endswith("step 7: a worker's weights are no longer finite") for line in ended.errors), ended.said
    assert record(folder)["status"] == "diverged"
    assert [path.name for path in checkpoints(folder)] == ["step-00000005"]


@pytest.mark.parametrize(
    ("engine", "every", "what", "job"),
    [
        ("torch", 100, "steps.jsonl: cannot be written", fork),
        pytest.param("torch", 100, "steps.jsonl: cannot be written", launch, marks=pytest.mark.weekly),
        pytest.param("horovod", 100, "steps.jsonl: cannot be written", launch, marks=pytest.mark.slow),
        # The other rank is just sending its state.
        pytest.param("torch", 2, "step-00000002: the checkpoint cannot be written", launch, marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_on_rank_0(engine: str, every: int, what: str, job: Job, tmp_path: Path) -> None:
    """One line, exit code 2; the other rank, which the launcher may end before it speaks, says the same or nothing."""
    folder = tmp_path / "run"
    arguments = [CONFIG, f"output.dir={folder}", f"train.checkpoint_every_steps={every}"]
    ended = job(engine, 2, arguments, tmp_path, trouble("full_disk", 0, 0))
    assert ended.code != 0
    first, *others = ended.errors
    assert re.match(rf"error: rank 0: {folder}\S*/{what}: File too large; no checkpoint was saved", first), ended.said
    assert all(line.startswith(f"error: rank 1: rank 0 cannot go on: {folder}") for line in others), ended.said
    assert 2 in ended.codes or re.search(r"exit with status code 2\.|exitcode  : 2 ", ended.out + ended.err), ended.said
    assert not files_of_ours(ended.err), ended.said
    assert not list(folder.glob("checkpoints/.*"))


def test_a_broken_model_on_one_rank(tmp_path: Path) -> None:
    """A mistake in a program, not of the user's: its traceback is shown, once."""
    ended = fork("torch", 2, [CONFIG, f"output.dir={tmp_path / 'run'}"], tmp_path, trouble("error", 3, 1))
    assert ended.code != 0
    assert ended.err.count("RuntimeError: the model broke") == 1, ended.said
    assert len(ended.errors) == 1
    assert "error: rank 0: lost rank 1 (pid " in ended.errors[0], ended.said
