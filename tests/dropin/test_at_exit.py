"""What a program leaves open ends with its process, but for one that ends with an error."""

import os
import sys

import pytest

from wirebench.dropin import at_exit
from wirebench.errors import PeerLost


class Exchange:
    def __init__(self, error: Exception | None = None) -> None:
        self.closed, self.error = 0, error
        at_exit.close_at_exit(self)

    def close(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


def test_all_are_closed_whatever_one_of_them_raises(capsys: pytest.CaptureFixture[str]) -> None:
    exchanges = Exchange(PeerLost("rank 1 is gone")), Exchange()
    at_exit._close_all()
    assert [each.closed for each in exchanges] == [1, 1]
    assert capsys.readouterr().err == "error: rank 1 is gone\n"


def test_after_an_error_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = Exchange()
    monkeypatch.setattr(sys, "last_value", RuntimeError("of the loop"), raising=False)
    at_exit._close_all()
    assert not exchange.closed


def test_a_fork_closes_nothing_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, process = Exchange(), os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    at_exit._close_all()
    assert not exchange.closed
