"""What a message costs, fitted to messages that were timed."""

import pytest

from wirebench.diagnose.link import UNKNOWN, TimedMessage, fitted

RATE, START = 125e6, 0.0003


def timed(*sizes: float, start: float = START, rounds: int = 1) -> list[TimedMessage]:
    return [TimedMessage("Sum", start * rounds + size / RATE, size, rounds) for size in sizes]


@pytest.mark.parametrize("rounds", [1, 6])
def test_start_up_and_rate_are_found_again(rounds: int) -> None:
    link = fitted(timed(4, 1e6, 1e7, rounds=rounds))
    assert link.start_seconds == pytest.approx(START) and link.bytes_per_second == pytest.approx(RATE)


def test_messages_of_one_size_give_a_least_rate_and_no_start_up() -> None:
    alike = [TimedMessage("Sum", 0.01, 1e6, 1), TimedMessage("Sum", 0.012, 1e6, 1)]
    assert fitted(alike).start_seconds is None and fitted(alike).bytes_per_second == pytest.approx(1e8)
    assert fitted([]) == UNKNOWN


def test_a_start_up_below_zero_leaves_one_constant() -> None:
    """As where short messages arrive before their time: the rate alone, between those of all messages."""
    early = [*timed(1e6, 1e7, start=0), TimedMessage("Sum", 1e4 / RATE / 5, 1e4, 1)]
    link = fitted(early)
    assert link.start_seconds is None
    assert link.bytes_per_second is not None and RATE < link.bytes_per_second < 5 * RATE


def test_a_rate_below_zero_leaves_the_start_up() -> None:
    slower_when_short = [TimedMessage("Sum", 0.004, 1e4, 1), TimedMessage("Sum", 0.002, 1e6, 1)]
    link = fitted(slower_when_short)
    assert link.bytes_per_second is None
    assert link.start_seconds is not None and 0.002 < link.start_seconds < 0.004


def test_tiny_messages_tell_no_rate() -> None:
    link = fitted(timed(100, 4000))
    assert link.start_seconds == pytest.approx(START, rel=0.1) and link.bytes_per_second is None
