"""The words of a diagnosis: where the step goes, the link, the break-even, the findings."""

from collections.abc import Sequence
from typing import Any

from suite.diagnose.causes import Finding, dense_bytes, sent_bytes
from suite.diagnose.evidence import COMPUTING, Evidence


def nominal_of(evidence: Evidence) -> float | None:
    """Bytes per second of the interface that carried most, where the system says its rate."""
    first = evidence.ranks[0]
    rates = first.get("link_mbit") or {}
    used = max((name for name in first.get("sent") or {} if name in rates), key=first["sent"].__getitem__, default=None)
    return None if used is None else rates[used] * 1e6 / 8


def parts(evidence: Evidence) -> dict[str, float]:
    """Seconds of a step, the mean over ranks: computing, data, and the exchange that nothing hides, in its parts."""
    computing = [evidence.computing(rank) for rank in range(len(evidence.ranks))]
    exposed = evidence.phase("exchange_exposed")
    waiting = min(max(computing) - sum(computing) / len(computing), exposed)
    known = {name: evidence.phase(name) for name in COMPUTING}
    told = sum(known.values()) + evidence.phase("data") + exposed
    return {
        **known,
        "data": evidence.phase("data"),
        "waiting for the slowest rank": waiting,
        "exchange, not hidden": exposed - waiting,
        "other": max(evidence.step - told, 0.0),
    }


def lines(evidence: Evidence, found: Sequence[Finding], nominal: float | None) -> list[str]:
    """The diagnosis."""
    told = [f"A step takes {_ms(evidence.step)}:"]
    told += [_part(name, seconds, f"{seconds / evidence.step:7.1%}") for name, seconds in parts(evidence).items()]
    told += [_part("compressing, beside them", evidence.phase("compress")), "", *_network(evidence, nominal), ""]
    if not found:
        return [*told, "Nothing stands out: no cause that a rule knows takes 5 % of the step."]
    for number, each in enumerate(found, 1):
        told += [
            f"{number}. {each.sentence}",
            f"   known by: {each.evidence}",
            f"   change: {each.change}; it saves {_ms(each.gain)} a step at most ({each.gain / evidence.step:.0%})",
        ]
    return told


def as_json(evidence: Evidence, found: Sequence[Finding], nominal: float | None) -> dict[str, Any]:
    """The same for programs."""
    return {
        "step_seconds": evidence.step,
        "parts": parts(evidence),
        "link": {**evidence.link._asdict(), "nominal_bytes_per_second": nominal},
        "break_even_bytes_per_second": break_even(evidence),
        "findings": [each._asdict() for each in found],
    }


def break_even(evidence: Evidence) -> float | None:
    """Bytes per second below which compressing takes less time than it saves; None without a compressor's work."""
    seconds, saved = evidence.phase("compress"), dense_bytes(evidence) - sent_bytes(evidence)
    compresses = evidence.record["config"].get("compressor", {}).get("name") != "none"
    return saved / seconds if compresses and seconds > 0 and saved > 0 else None


def _network(evidence: Evidence, nominal: float | None) -> list[str]:
    link, told = evidence.link, []
    if link.bytes_per_second is not None:
        least = "" if link.start_seconds is not None else " at least"
        told.append(
            f"Messages travel at {8e-9 * link.bytes_per_second:.3g} Gbit/s{least}"
            + (f"; the link has {8e-9 * nominal:.3g}." if nominal else ".")
        )
    if link.start_seconds is not None:
        told.append(f"Starting a round takes {_ms(link.start_seconds)}.")
    if not evidence.messages:
        told.append("The run drew no messages (trace.json), so the network's part is not known.")
    if (rate := break_even(evidence)) is not None:
        told.append(f"This compressor pays below {8e-9 * rate:.3g} Gbit/s, by its time and its bytes.")
    return told


def _part(name: str, seconds: float, share: str = "") -> str:
    return f"  {name:28} {_ms(seconds):>9}{share}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
