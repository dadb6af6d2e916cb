"""Rows on the exchange: where the time of a step's messages goes, hidden or not, and what the network should give.

All values are rank 0's. A row whose value is not known states why.
"""

from typing import NamedTuple

from wirebench.diagnose.evidence import Evidence
from wirebench.diagnose.words import gbit, ms

SECONDS, RATE = "s", "B/s"


class ExchangeRow(NamedTuple):
    """A name, a value in its unit (SECONDS or RATE; None: not known), and what it rests on or stands beside."""

    name: str
    value: float | None
    unit: str
    evidence: str


def rows(evidence: Evidence) -> list[ExchangeRow]:
    """What the messages are made of, what they carry a second, a start-up, and what the launcher took."""
    return [*_parts(evidence), _bus_bandwidth(evidence), _start_up(evidence), _launcher(evidence)]


def _parts(evidence: Evidence) -> list[ExchangeRow]:
    """Rounds x start-up, bytes / rate, and what the fitted line leaves of all messages."""
    link, messages = evidence.link, evidence.messages
    rounds, size = sum(each.rounds for each in messages), evidence.wire_bytes
    starting: float | None = None
    carrying: float | None = None
    rest: float | None = None
    of_rounds = of_bytes = "the messages do not tell it (docs/diagnose.md)" if messages else "no messages were drawn"
    if link.start_seconds is not None:
        starting, of_rounds = rounds * link.start_seconds, f"{rounds} x {ms(link.start_seconds)}"
    if link.bytes_per_second is not None:
        carrying = size / link.bytes_per_second
        # Without a start-up the rate is the least that it can be.
        least = "" if link.start_seconds is not None else " at least"
        of_bytes = f"{size / 1e6:.4g} MB at {gbit(link.bytes_per_second)} Gbit/s{least}"
    whole = sum(each.seconds for each in messages)
    if starting is not None and carrying is not None:
        rest = whole - starting - carrying
    return [
        ExchangeRow("rounds x start-up", starting, SECONDS, of_rounds),
        ExchangeRow("bytes / rate", carrying, SECONDS, of_bytes),
        ExchangeRow("beside that line", rest, SECONDS, f"of {ms(whole)}, the {len(messages)} messages of a step"),
    ]


def _bus_bandwidth(evidence: Evidence) -> ExchangeRow:
    """Bus bandwidth as nccl-tests defines it: bytes that a rank sends over the seconds of its messages.

    Its evidence is the bandwidth of the network alone: the same number of the engine's own all-reduces, by the line
    that was fitted to the all-reduces of --measure.
    """
    alone, size = evidence.alone, evidence.wire_bytes
    whole = sum(each.seconds for each in evidence.messages)
    told = "the network alone is not measured (--measure)" if evidence.job is None else "without waiting for late ranks"
    if alone.bytes_per_second is not None and evidence.messages:
        expected = len(evidence.messages) * (alone.start_seconds or 0.0) + size / alone.bytes_per_second
        told = f"by the fit of the network alone {gbit(size / expected)} Gbit/s"
    return ExchangeRow("busbw of the messages", size / whole if whole else None, RATE, told)


def _start_up(evidence: Evidence) -> ExchangeRow:
    nominal = evidence.nominal_start
    told = "no nominal one is known (--link 10gbe gives one)" if nominal is None else f"nominal {ms(nominal)}"
    return ExchangeRow("start-up of a round", evidence.link.start_seconds, SECONDS, told)


def _launcher(evidence: Evidence) -> ExchangeRow:
    seconds = evidence.record.get("startup_seconds")
    whole = (seconds or 0.0) + (evidence.record.get("seconds_total") or 0.0)
    share = f", {seconds / whole:.0%} of the run" if seconds and whole > seconds else ""
    told = f"once, from the start of rank 0's process to the first step{share}"
    return ExchangeRow(
        "launcher and start", seconds, SECONDS, told if seconds is not None else "the record does not have it"
    )
