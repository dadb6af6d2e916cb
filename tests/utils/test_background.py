"""Jobs beside the caller's thread: one at a time, in order, and nothing that they raise is lost."""

import functools
import threading
import time

import pytest

from wirebench.utils.background import Background

LIMIT_SECONDS = 60.0


@pytest.fixture
def background() -> Background:
    return Background("test")


def test_the_caller_goes_on_meanwhile(background: Background) -> None:
    may_end, names = threading.Event(), list[str]()

    def job() -> None:
        assert may_end.wait(LIMIT_SECONDS)
        names.append(threading.current_thread().name)

    background.submit(job)
    assert background.busy() and not names
    may_end.set()
    background.wait()
    assert not background.busy() and names == ["test"]
    background.wait()


def test_one_job_at_a_time_and_in_order(background: Background) -> None:
    seen: list[tuple[str, int]] = []

    def job(number: int) -> None:
        seen.append(("begin", number))
        time.sleep(0.02)
        seen.append(("end", number))

    for number in range(4):
        background.submit(functools.partial(job, number))
    background.wait()
    assert seen == [(what, number) for number in range(4) for what in ("begin", "end")]


def test_an_error_is_raised_once_and_the_jobs_behind_it_are_left_out(background: Background) -> None:
    begun: list[int] = []
    ended = threading.Event()
    may_fail = threading.Event()

    def fails() -> None:
        assert may_fail.wait(LIMIT_SECONDS)
        raise ZeroDivisionError

    background.submit(fails)
    background.submit(lambda: begun.append(1), ended.set)
    may_fail.set()
    with pytest.raises(ZeroDivisionError):
        background.wait()
    assert ended.is_set() and not begun
    background.wait()
    background.submit(lambda: begun.append(2))
    background.wait()
    assert begun == [2]


def test_a_job_behind_one_that_has_failed_is_refused_at_once(background: Background) -> None:
    begun: list[int] = []
    failed, ended = threading.Event(), threading.Event()
    background.submit(lambda: 1 / 0, failed.set)
    assert failed.wait(LIMIT_SECONDS)
    with pytest.raises(ZeroDivisionError):
        background.submit(lambda: begun.append(1), ended.set)
    assert ended.is_set() and not background.busy() and not begun
    with pytest.raises(ZeroDivisionError):
        background.wait()
    background.submit(lambda: begun.append(2))
    background.wait()
    assert begun == [2]


def test_the_caller_works_off_what_has_not_begun(background: Background) -> None:
    may_end, names = threading.Event(), list[str]()

    def job() -> None:
        assert may_end.wait(LIMIT_SECONDS)
        names.append(threading.current_thread().name)

    background.submit(job)
    while background._jobs:  # until the thread has it
        time.sleep(0.001)
    background.submit(job, wake=False)
    threading.Timer(0.05, may_end.set).start()
    background.work_off()
    assert names == ["test", threading.current_thread().name] and not background.busy()
    background.submit(lambda: 1 / 0, wake=False)
    background.work_off()
    assert isinstance(background.error, ZeroDivisionError)


def test_closing_waits_for_nothing(background: Background) -> None:
    may_end, begun = threading.Event(), list[int]()
    background.submit(lambda: may_end.wait(LIMIT_SECONDS))
    background.submit(lambda: begun.append(1))
    background.close()
    may_end.set()
    background.wait()
    assert not begun
