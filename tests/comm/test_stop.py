"""A wish to stop, of any rank and at any time, ends all ranks after the same step."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

from tests.distributed.ends import assert_same_end, checkpoints, losses, record
from tests.distributed.launch import CONFIG, here, trouble
from wirebench.comm import stop
from wirebench.comm import store as meeting
from wirebench.comm.stop import Stopper, steps_between_looks
from wirebench.comm.store import StorePlace
from wirebench.errors import PeerLost


def test_a_signal_is_a_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "SAME_WISH_SECONDS", 60.0)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    stopper = Stopper(None)
    stopper.listen()
    assert not stopper.after_step(0)
    os.kill(os.getpid(), signal.SIGTERM)
    # The launcher passes on what the terminal has sent already.
    os.kill(os.getpid(), signal.SIGINT)
    assert stopper.after_step(0)
    monkeypatch.setattr(stop, "SAME_WISH_SECONDS", 0.0)
    time.sleep(0.01)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    stopper.close()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_a_launcher_that_is_gone_is_a_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    stopper = Stopper(store, os.getppid())
    stopper.before_step(3)
    assert not store.check([stop.KEY])
    monkeypatch.setattr(os, "getppid", lambda: 1)
    stopper.before_step(4)
    assert stopper.told and stopper.after_step(4)


@pytest.mark.slow
def test_a_store_whose_rank_is_stopped_is_a_loss_and_no_endless_wait() -> None:
    """The stopped rank's host goes on answering for its connections. A key that is missing is waited for as long."""
    words = (
        "import sys, time; from wirebench.comm import store\n"
        "place, server = store.listen('127.0.0.1'); kept = store.keep(place, server, 30.0)\n"
        "print(place.port, place.word, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True) as rank_0:
        assert rank_0.stdout is not None
        port, word = rank_0.stdout.readline().split()
        try:
            _stop_and_ask(rank_0, StorePlace("127.0.0.1", int(port), word))
        finally:
            rank_0.kill()  # it would be waited for otherwise, stopped as it may be


def _stop_and_ask(rank_0: "subprocess.Popen[str]", place: StorePlace) -> None:
    joined = meeting.join(place, 1.0)
    stopper = Stopper(joined)
    assert not stopper.after_step(3)
    late = threading.Timer(1.5, meeting.join(place, 1.0).set, ["late", "word"])
    late.start()
    joined.wait(["late"], timedelta(seconds=10))
    rank_0.send_signal(signal.SIGSTOP)
    stopping = time.monotonic()
    while psutil.Process(rank_0.pid).status() != psutil.STATUS_STOPPED:  # until then it goes on answering
        assert time.monotonic() < stopping + 30
        time.sleep(0.01)
    told: list[bool | PeerLost] = []

    def look() -> None:
        try:
            told.append(stopper.after_step(4))
        except PeerLost as error:
            told.append(error)

    looks = threading.Thread(target=look, daemon=True)
    looks.start()
    looks.join(10)
    rank_0.send_signal(signal.SIGCONT)
    assert told, "nobody interrupts what waits for ever in the store"
    assert isinstance(told[0], PeerLost), "a stopped process has answered"
    with pytest.raises(RuntimeError):  # and not the late answer to the question before
        joined.check(["late"])


def test_the_first_wish_counts_from_its_step_on() -> None:
    store = dist.HashStore()
    first, second, listener = Stopper(store), Stopper(store), Stopper(store)
    first.told = True
    first.before_step(7)
    second.told = True
    second.before_step(9)
    assert [step for step in range(10) if listener.after_step(step)] == [7, 8, 9]
    assert all(each.after_step(7) for each in (first, second))


@pytest.mark.parametrize("meets", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_all_ranks_stop_after_the_same_step(seed: int, meets: int) -> None:
    """Ranks as threads; every `meets` steps one ends for none before all have begun it, as with an exchange."""
    rng, size, store = random.Random(seed), 4, dist.HashStore()
    stoppers, barrier = [Stopper(store) for _ in range(size)], threading.Barrier(size)
    every = rng.choice([1, 2, 5])
    for stopper in stoppers:
        stopper.every = every
    asked_at = {rank: rng.randrange(3, 12) for rank in rng.sample(range(size), rng.randrange(1, size + 1))}
    naps = [[rng.choice([0, 0, 0.002]) for _ in range(60)] for _ in range(size)]
    last = [-1] * size

    def train(rank: int) -> None:
        for step in range(30):
            if asked_at.get(rank) == step:
                stoppers[rank].told = True
            time.sleep(naps[rank][2 * step])
            stoppers[rank].before_step(step)
            if (step + 1) % meets == 0:
                barrier.wait(60)
            time.sleep(naps[rank][2 * step + 1])
            met = step - (step + 1) % meets
            if stoppers[rank].looks(met, over=False) and stoppers[rank].after_step(met):
                last[rank] = step
                return

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    earliest = min(asked_at.values())
    assert len(set(last)) == 1, last
    assert earliest <= last[0] < earliest + every + 2 * meets - 1


@pytest.mark.parametrize(("seconds", "steps"), [(0.001, 500), (0.25, 2), (3.0, 1), (0.0, 500_000)])
def test_looks_are_about_half_a_second_apart(seconds: float, steps: int) -> None:
    assert steps_between_looks(seconds) == pytest.approx(steps, rel=0.01)


def test_between_steps_every_rank_hears_of_a_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "LOOK_EVERY_SECONDS", 60.0)
    store = dist.HashStore()
    first, second = Stopper(store), Stopper(store)
    assert not first.heard(5) and not second.heard(5)
    first.told = True
    assert first.heard(5)
    assert not second.heard(5), "it looked just now"
    monkeypatch.setattr(stop, "LOOK_EVERY_SECONDS", 0.0)
    assert second.heard(5)
    # Whoever had finished its evaluation before goes on, as all do then, and all stop after the next step they look at.
    assert all(each.after_step(6) for each in (first, second))


RARELY = ["train.checkpoint_every_steps=100", "train.max_steps=12"]


@pytest.fixture(scope="module")
def unbroken_here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    assert here(2, [CONFIG, *RARELY, f"output.dir={folder}", "train.checkpoint_every_steps=12"]) == 0
    return folder


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("stop_in", "told"),
    [
        (2, trouble("terminate", 2)),
        (5, trouble("terminate", 5)),
        (8, trouble("terminate", 8)),
        (11, trouble("terminate", 11)),
        (5, trouble("terminate_evaluation", 1)),
        (11, trouble("terminate_evaluation", 4)),
    ],
    ids=["mid-epoch", "last-of-epoch", "second-epoch", "last", "evaluation", "last-evaluation"],
)
def test_a_stopped_run_is_saved_and_goes_on(
    stop_in: int, told: dict[str, str], unbroken_here: Path, tmp_path: Path
) -> None:
    """The signal comes in step `stop_in` (of 12, 6 an epoch) or in the evaluation after it; no checkpoint is due."""
    folder = tmp_path / "run"
    assert here(2, [CONFIG, *RARELY, f"output.dir={folder}"], told) == 0
    found = record(folder)
    assert (found["status"], found["steps_done"]) == ("interrupted", stop_in + 1)
    assert checkpoints(folder)[-1].name == f"step-{stop_in + 1:08d}"
    assert len(losses(folder)) == stop_in + 1
    assert [entry["epoch"] for entry in found["history"]] == list(range(stop_in // 6)), "what was evaluated"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    again = [CONFIG, *RARELY, f"output.dir={folder}", "train.resume=auto", "train.checkpoint_every_steps=12"]
    assert here(2, again) == 0
    assert_same_end(folder, unbroken_here)
