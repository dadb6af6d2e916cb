"""A rule for each thing that makes a run slow: what it costs in a step, how that is known, and what to change."""

import statistics
from collections.abc import Callable
from typing import NamedTuple

from suite.diagnose.evidence import Evidence
from wirebench.comm.base import ring_reduce_bytes

NOTABLE = 0.05
"""Share of a step below which nothing is said: as much passes from one run to the next."""
SLOWER = 1.2
"""A rank that computes so many times as long as the others do is slow; ranks of one machine differ by less."""
POOR = 0.5
"""Share of the nominal rate below which a link is poor; headers, and a busy processor, cost less than that."""


class Finding(NamedTuple):
    """What is wrong.

    name      of the rule
    sentence  what it is and what it costs; evidence: the numbers behind it; change: what would help
    gain      seconds of a step that the change would save, at most
    """

    name: str
    sentence: str
    evidence: str
    change: str
    gain: float


Rule = Callable[[Evidence, float | None], Finding | None]


def findings(evidence: Evidence, nominal: float | None) -> list[Finding]:
    """What the rules find, the most expensive first; `nominal` is the link's rate in bytes per second, if known."""
    found = [rule(evidence, nominal) for rule in RULES]
    notable = [each for each in found if each is not None and each.gain > NOTABLE * evidence.step]
    return sorted(notable, key=lambda each: -each.gain)


def starving(evidence: Evidence, nominal: float | None) -> Finding | None:
    """The data loader is slower than the step."""
    rank, seconds = max(
        ((each["rank"], each["phases"]["data"]) for each in evidence.ranks), key=lambda pair: float(pair[1])
    )
    return Finding(
        "data",
        f"Rank {rank} waits {_ms(seconds)} of a step for its data.",
        f"phases.data of rank {rank}; a step takes {_ms(evidence.step)}",
        "more workers in the data loader, a faster disk, or smaller images",
        seconds,
    )


def slow_rank(evidence: Evidence, nominal: float | None) -> Finding | None:
    """One rank computes longer than the others, and they wait for it."""
    if len(evidence.ranks) < 2:
        return None
    seconds = [evidence.computing(rank) for rank in range(len(evidence.ranks))]
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    others = statistics.median(each for rank, each in enumerate(seconds) if rank != slowest)
    if seconds[slowest] < SLOWER * others:
        return None
    host = evidence.ranks[slowest]["host"]
    return Finding(
        "slow rank",
        f"Rank {slowest} on {host} computes {_ms(seconds[slowest])} of a step, the others {_ms(others)}; they wait.",
        "forward, backward and update by rank: " + ", ".join(_ms(each) for each in seconds),
        f"look what else runs on {host}, or leave rank {slowest} out",
        seconds[slowest] - others,
    )


def slow_compressor(evidence: Evidence, nominal: float | None) -> Finding | None:
    """Compressing takes longer than what it saves on the wire."""
    seconds, rate = evidence.phase("compress"), evidence.link.bytes_per_second or nominal
    if evidence.record["config"].get("compressor", {}).get("name") == "none":
        return None
    saved_bytes = dense_bytes(evidence) - sent_bytes(evidence)
    saved = saved_bytes / rate if rate else 0.0
    if rate is None or seconds <= saved:
        return None
    limit = f"it would pay below {8e-9 * saved_bytes / seconds:.3g} Gbit/s" if saved_bytes > 0 else "it saves no bytes"
    return Finding(
        "compressor",
        f"Compressing takes {_ms(seconds)} of a step and saves {_ms(max(saved, 0.0))} of messages: {limit}.",
        f"phases.compress; {saved_bytes / 1e6:.3g} MB fewer than dense at {8e-9 * rate:.3g} Gbit/s",
        "a cheaper compressor, or none",
        seconds - max(saved, 0.0),
    )


def poor_link(evidence: Evidence, nominal: float | None) -> Finding | None:
    """The link carries much less than it should."""
    rate = evidence.link.bytes_per_second
    if rate is None or nominal is None or rate > POOR * nominal:
        return None
    size = sum(each.wire_bytes for each in evidence.messages)
    return Finding(
        "link",
        f"Messages travel at {8e-9 * rate:.3g} Gbit/s, where the link has {8e-9 * nominal:.3g}.",
        f"{len(evidence.messages)} messages of a step, {size / 1e6:.3g} MB, at their fastest of the steps drawn",
        "measure the link alone (wirebench bench collectives), and look at its duplex, its cable, its driver",
        min(size / rate - size / nominal, evidence.exposed),
    )


def small_messages(evidence: Evidence, nominal: float | None) -> Finding | None:
    """The time goes into starting messages, not into their bytes."""
    start = evidence.link.start_seconds
    if start is None or len(evidence.messages) < 2:
        return None
    rounds = sum(each.rounds for each in evidence.messages)
    starting, whole = start * rounds, sum(each.seconds for each in evidence.messages)
    if starting < 0.5 * whole:
        return None
    scheduler = evidence.record["config"].get("scheduler", {}).get("name", "?")
    return Finding(
        "small messages",
        f"Starting {len(evidence.messages)} messages ({rounds} rounds) takes {_ms(starting)} of their {_ms(whole)}.",
        f"{start * 1e3:.3g} ms a round, fitted to the step's messages; scheduler {scheduler}",
        "a scheduler that merges (mg_wfbp, sync_easgd, fused with a larger cap), or a collective of fewer rounds",
        min(starting * (1 - 1 / len(evidence.messages)), evidence.exposed),
    )


def wrong_interface(evidence: Evidence, nominal: float | None) -> Finding | None:
    """Messages take an interface that is slower than another one of the host."""
    for each in evidence.ranks:
        rates, sent = each.get("link_mbit") or {}, each.get("sent") or {}
        outside = {name: count for name, count in sent.items() if name != "lo"}
        if not rates or not outside:
            continue
        used, best = max(outside, key=outside.__getitem__), max(rates, key=rates.__getitem__)
        if used in rates and rates[used] < rates[best]:
            return Finding(
                "interface",
                f"{each['host']} sends over {used} ({rates[used]:g} Mbit/s), though {best} has {rates[best]:g} Mbit/s.",
                f"{outside[used] / 1e6:.4g} MB over {used}, {outside.get(best, 0) / 1e6:.4g} over {best} in this run",
                f"network.interface={best}, GLOO_SOCKET_IFNAME={best}, NCCL_SOCKET_IFNAME={best}",
                evidence.exposed * (1 - rates[used] / rates[best]),
            )
    return None


def too_many_threads(evidence: Evidence, nominal: float | None) -> Finding | None:
    """The ranks of a host start more threads than it has cores."""
    for each in evidence.ranks:
        threads, cores, ranks = each.get("threads"), each.get("cores"), each.get("ranks_on_host", 1)
        # One thread each is the least there is: then there are too many ranks, which is what the user asked for.
        if threads and cores and threads > 1 and threads * ranks > cores:
            wanted = max(1, cores // ranks)
            return Finding(
                "threads",
                f"{ranks} ranks of {threads} threads share the {cores} cores of {each['host']}.",
                f"ranks[].threads and ranks[].cores of the record; {wanted} a rank would fit",
                f"engine.threads={wanted} (OMP_NUM_THREADS={wanted} for other programs)",
                evidence.computing(each["rank"]) * (1 - cores / (threads * ranks)),
            )
    return None


def staged(evidence: Evidence, nominal: float | None) -> Finding | None:
    """Gradients on a GPU travel through the host's memory."""
    record = evidence.record
    if record["device"] != "cuda" or record.get("backend") == "nccl":
        return None
    return Finding(
        "staged",
        f"Gradients are on a GPU, but {record.get('backend')} sends them: each message is copied to the host and back.",
        "device and backend of the record",
        "one GPU for each rank, so that NCCL can be used; for Horovod, a build with NCCL (docs/images.md)",
        evidence.exposed,
    )


RULES: tuple[Rule, ...] = (
    starving, slow_rank, slow_compressor, poor_link, small_messages, wrong_interface, too_many_threads, staged,
)  # fmt: skip


def dense_bytes(evidence: Evidence) -> float:
    """Bytes that a rank would send in a step of dense fp32 on a ring."""
    return float(ring_reduce_bytes(evidence.record["bytes_per_step"]["dense"], evidence.record["world_size"]))


def sent_bytes(evidence: Evidence) -> float:
    """Bytes that a rank sends in a step."""
    told = evidence.record["bytes_per_step"]
    return float(told.get("wire_mean") or told["wire"] or 0.0)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
