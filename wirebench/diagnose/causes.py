"""A rule for each thing that makes a run slow: what it costs in a step, how that is known, and what to change."""

import statistics
from collections.abc import Callable, Sequence

from wirebench import schedulers
from wirebench.diagnose.cause import Cause, Change
from wirebench.diagnose.evidence import UNNAMED, Evidence
from wirebench.diagnose.full_link import MOSTLY, NOTABLE, POOR, Known, full_link
from wirebench.diagnose.job import DDP, FRAMEWORKS, FSDP, HOROVOD, OTHER, RecordedJob, steadily
from wirebench.diagnose.words import gbit, ms
from wirebench.planner.ddp_caps import caps_of_elements, caps_text

SLOWER = 1.2
"""A rank is slow if it computes this many times as long as the others; ranks of one machine differ by less."""

LARGER = {
    DDP: "larger buckets: DistributedDataParallel(bucket_cap_mb=25) or more",
    FSDP: "fewer and larger units: fully_shard for several layers together",
    HOROVOD: "fuse more: HOROVOD_FUSION_THRESHOLD, HOROVOD_CYCLE_TIME",
    OTHER: "sum gradients in fewer and larger tensors",
}
"""How each framework makes larger messages, where no merge of layers could be priced."""

Rule = Callable[[Evidence, float | None], Cause | None]


def findings(evidence: Evidence, nominal: float | None, known: Known) -> list[Cause]:
    """What the rules find, the most expensive first; `nominal` is the link's rate in bytes per second, if known."""
    found = [rule(evidence, nominal) for rule in RULES]
    found.append(full_link(evidence, nominal, known))
    notable = [each for each in found if each is not None and each.gain > NOTABLE * evidence.step]
    return sorted(notable, key=lambda each: -each.gain)


def starving(evidence: Evidence, nominal: float | None) -> Cause | None:
    """The data loader is slower than the step."""
    rank, seconds = max(
        ((each["rank"], each["phases"]["data"]) for each in evidence.ranks), key=lambda pair: float(pair[1])
    )
    without_loader = evidence.job is not None and not evidence.job.loads
    between = "; no DataLoader: this is the time from an update to the next forward pass" * without_loader
    return Cause(
        "data",
        f"Rank {rank} waits {ms(seconds)} of a step for its data.",
        f"phases.data of rank {rank}; a step takes {ms(evidence.step)}{between}",
        (Change("more workers in the data loader, a faster disk, or smaller images", seconds),),
    )


def slow_rank(evidence: Evidence, nominal: float | None) -> Cause | None:
    """One rank computes longer than the others, and they wait for it."""
    if len(evidence.ranks) < 2:
        return None
    seconds = [evidence.computing(rank) for rank in range(len(evidence.ranks))]
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    others = statistics.median(each for rank, each in enumerate(seconds) if rank != slowest)
    # A job's files say it by step: a rank that is slow in some of them only is disturbed, as the others are in turn.
    steady = evidence.ranks[slowest].get("compute_steadily", seconds[slowest])
    if seconds[slowest] < SLOWER * others or steady <= others:
        return None
    host, rank = evidence.ranks[slowest]["host"], evidence.ranks[slowest]["rank"]
    named, its = (f" on {host}", host) if host != UNNAMED else ("", "its host")
    # Without a rank of the only host its work is the others'.
    leave = "" if evidence.on_one_host else f", or leave rank {rank} out"
    return Cause(
        "slow rank",
        f"Rank {rank}{named} computes {ms(seconds[slowest])} of a step, the others {ms(others)}; they wait.",
        "forward, backward and update by rank: " + ", ".join(ms(each) for each in seconds),
        (Change(f"look what else runs on {its}{leave}", seconds[slowest] - others),),
    )


def late_rank(evidence: Evidence, nominal: float | None) -> Cause | None:
    """The others wait for a rank that neither computes longer nor waits longer for its data."""
    if evidence.job is None or len(evidence.job.arrivals) < 2:
        return None
    late = max(evidence.job.arrivals, key=lambda each: each.held)
    place = next(place for place, each in enumerate(evidence.ranks) if each["rank"] == late.rank)
    apart = [number for number in range(len(evidence.ranks)) if number != place]
    longer = evidence.computing(place) - statistics.median(evidence.computing(each) for each in apart)
    data = [float(each["phases"]["data"]) for each in evidence.ranks]
    longer_data = data[place] - statistics.median(data[each] for each in apart)
    # Ranks that are disturbed now and then wait for each other in turn, as ranks without a free core do.
    others = [each.by_step for each in evidence.job.arrivals if each is not late]
    more = [mine - statistics.median(theirs) for mine, *theirs in zip(late.by_step, *others, strict=True)]
    explained = max(longer, 0.0) + max(longer_data, 0.0)
    if steadily(more) - explained <= _spread(evidence):
        return None
    unexplained = statistics.median(more) - explained
    return Cause(
        "late rank",
        f"Rank {late.rank} comes late to the collectives: the others wait {ms(late.held)} of a step for it, and "
        "neither computing nor data takes it so much longer.",
        f"it comes last to {late.last:.0%} of the collectives, by clocks that agree within {ms(_spread(evidence))}",
        (Change(f"look what rank {late.rank} does between its passes: logs, checkpoints, garbage", unexplained),),
    )


def _spread(evidence: Evidence) -> float:
    assert evidence.job is not None
    return max((each.spread for each in evidence.job.clocks), default=0.0)


def launch_gaps(evidence: Evidence, nominal: float | None) -> Cause | None:
    """The GPU waits for the host, which launches too slowly."""
    gaps = [each.get("launch_gap") for each in evidence.ranks]
    known = [gap for gap in gaps if gap is not None]
    if not known:
        return None
    # A rank whose GPU waits holds up the others, whose exchange then waits.
    seconds = max(known)
    rank = evidence.ranks[gaps.index(seconds)]["rank"]
    return Cause(
        "launch gaps",
        f"The GPU of rank {rank} is idle {ms(seconds)} of a step while the host launches its kernels.",
        "time in the passes and the update in which no kernel runs, by rank: " + ", ".join(map(ms, known)),
        (Change("torch.compile, CUDA graphs, an optimizer with fused=True, or a larger batch", seconds),),
    )


def slow_compressor(evidence: Evidence, nominal: float | None) -> Cause | None:
    """Compressing takes longer than what it saves on the wire."""
    seconds = evidence.phase("compress")
    rate = evidence.link.bytes_per_second or evidence.alone.bytes_per_second or nominal
    saved_bytes = evidence.saved_bytes
    if evidence.plugin("compressor") == "none" or rate is None or saved_bytes is None:
        return None
    saved = saved_bytes / rate
    if seconds <= saved:
        return None
    limit = f"it would pay below {gbit(saved_bytes / seconds)} Gbit/s" if saved_bytes > 0 else "it saves no bytes"
    return Cause(
        "compressor",
        f"Compressing takes {ms(seconds)} of a step and saves {ms(max(saved, 0.0))} of messages: {limit}.",
        f"phases.compress; {saved_bytes / 1e6:.3g} MB fewer than dense at {gbit(rate)} Gbit/s",
        (Change("a cheaper compressor, or none", seconds - max(saved, 0.0), ("compressor.name=none",)),),
    )


def poor_link(evidence: Evidence, nominal: float | None) -> Cause | None:
    """The link carries much less than it should, or much less than other hosts' do."""
    rate, alone = evidence.link.bytes_per_second, evidence.alone.bytes_per_second
    if rate is None or nominal is None or rate > POOR * nominal:
        return None
    size = evidence.wire_bytes
    told = [f"{len(evidence.messages)} messages of a step, {size / 1e6:.3g} MB, at their fastest of the steps drawn"]
    told += [f"alone the network carries {gbit(alone)} Gbit/s"] if alone else []
    slower = [(host, name, rate) for host, name, rate in evidence.used_links() if rate < POOR * nominal]
    told += [f"{host}'s {name} has {gbit(rate)} Gbit/s by its own account" for host, name, rate in slower]
    look = "look at its duplex, its cable, its driver"
    if alone is None:
        change = f"measure the link alone (--measure), and {look}"
    elif alone > POOR * nominal:
        change = "the link is in order alone: look what else uses it, or the processors, during the run"
    else:
        change = f"the link is poor alone, too: {look}"
    return Cause(
        "link",
        f"Messages travel at {gbit(rate)} Gbit/s, where the link has {gbit(nominal)}.",
        "; ".join(told),
        (Change(change, min(size / rate - size / nominal, evidence.exposed)),),
    )


def small_messages(evidence: Evidence, nominal: float | None) -> Cause | None:
    """The time goes into starting messages, not into their bytes."""
    start = evidence.link.start_seconds
    if start is None or len(evidence.messages) < 2:
        return None
    rounds = sum(each.rounds for each in evidence.messages)
    starting, whole = start * rounds, sum(each.seconds for each in evidence.messages)
    if starting < MOSTLY * whole:
        return None
    # What was drawn is the shortest: of what is not hidden, beside compressing, the same share is start-up.
    exposed = max(min(starting, evidence.exposed), (evidence.exposed - evidence.phase("compress")) * starting / whole)
    count = len(evidence.messages)
    saved = exposed * (1 - 1 / count)
    sentence = f"Starting {count} messages ({rounds} rounds) takes {ms(starting)} of their {ms(whole)}."
    fit = f"{start * 1e3:.3g} ms a round, fitted to the step's messages"
    if evidence.job is not None:
        larger = _larger(evidence.job, saved)
        return Cause("small messages", sentence, f"{fit}; {FRAMEWORKS[evidence.job.framework]}", (larger,))
    scheduler = evidence.plugin("scheduler")
    better = ("mg_wfbp", "a scheduler that merges by what a message costs")
    if schedulers.PLUGINS.is_own(scheduler) and schedulers.PLUGINS.load(scheduler).needs_profile:
        better = ("single", "one message of all layers")
    change = f"{better[1]}: scheduler.name={better[0]}; or fused with a larger cap, or a collective of fewer rounds"
    return Cause(
        "small messages",
        sentence,
        f"{fit}; scheduler {scheduler}",
        (Change(change, saved, (f"scheduler.name={better[0]}",)),),
    )


def _larger(job: RecordedJob, saved: float) -> Change:
    """How a job's framework makes larger messages; saved: seconds of a step without most of the start-ups."""
    if job.framework == DDP and job.merge_gain > 0:
        caps = caps_text(caps_of_elements(job.merge))
        return Change(f"the planner's merge: bucket_cap_mb_list={caps} (torch 2.15)", job.merge_gain)
    return Change(LARGER[job.framework], saved)


def wrong_interface(evidence: Evidence, nominal: float | None) -> Cause | None:
    """Messages take an interface that is slower than another one of the host."""
    for each in evidence.ranks:
        rates, sent = each.get("link_mbit") or {}, each.get("sent") or {}
        outside = {name: count for name, count in sent.items() if name != "lo"}
        if not rates or not outside:
            continue
        used, best = max(outside, key=outside.__getitem__), max(rates, key=rates.__getitem__)
        if used in rates and rates[used] < rates[best]:
            return Cause(
                "interface",
                f"{each['host']} sends over {used} ({rates[used]:g} Mbit/s), though {best} has {rates[best]:g} Mbit/s.",
                f"{outside[used] / 1e6:.4g} MB over {used}, {outside.get(best, 0) / 1e6:.4g} over {best} in this run",
                (
                    Change(
                        f"network.interface={best}, GLOO_SOCKET_IFNAME={best}, NCCL_SOCKET_IFNAME={best}",
                        evidence.exposed * (1 - rates[used] / rates[best]),
                        variables={"GLOO_SOCKET_IFNAME": best, "NCCL_SOCKET_IFNAME": best},
                    ),
                ),
            )
    return None


def too_many_threads(evidence: Evidence, nominal: float | None) -> Cause | None:
    """The ranks of a machine start more threads than it has cores."""
    for rank, each in enumerate(evidence.ranks):
        threads, cores, ranks = each.get("threads"), each.get("cores"), evidence.crowd(rank)
        # One thread each is the least there is: then there are too many ranks (shared_processor).
        if threads and cores and threads > 1 and threads * ranks > cores:
            wanted = max(1, cores // ranks)
            return Cause(
                "threads",
                f"{ranks} ranks of {threads} threads share the {cores} cores of {each['host']}.",
                f"ranks[].threads and ranks[].cores of the record; {wanted} a rank would fit",
                (
                    Change(
                        f"engine.threads={wanted} (OMP_NUM_THREADS={wanted} for other programs)"
                        if evidence.job is None
                        else f"OMP_NUM_THREADS={wanted}",
                        evidence.computing(rank) * (1 - cores / (threads * ranks)),
                        (f"engine.threads={wanted}",) if evidence.job is None else (),
                    ),
                ),
            )
    return None


def shared_processor(evidence: Evidence, nominal: float | None) -> Cause | None:
    """More ranks than cores on a machine, and computing takes so much longer for it."""
    crowded = [
        rank for rank, each in enumerate(evidence.ranks) if each.get("cores") and evidence.crowd(rank) > each["cores"]
    ]
    if not crowded:
        return None
    growth, told = _growth(evidence, crowded)
    first = evidence.ranks[crowded[0]]
    ranks, cores = evidence.crowd(crowded[0]), first["cores"]
    return Cause(
        "shared processor",
        f"{ranks} ranks share the {cores} cores of {first['host']}'s machine, and computing takes {ms(growth)} longer "
        "for it.",
        told,
        (
            Change(
                f"at most {cores} ranks on this machine; on an emulated cluster replay a model (docs/clusters.md)",
                growth,
            ),
        ),
    )


def _growth(evidence: Evidence, crowded: Sequence[int]) -> tuple[float, str]:
    """Extra seconds that crowded ranks compute in a step, as their mean, and the evidence in words."""
    waits = {rank: evidence.ranks[rank].get("core_wait") for rank in crowded}
    known = {rank: wait for rank, wait in waits.items() if wait is not None}
    if known:
        # Of what a rank waits, no more than what it computes: it may have been about to copy a message.
        growth = statistics.fmean(min(evidence.step * wait, evidence.computing(rank)) for rank, wait in known.items())
        shares = ", ".join(f"{wait:.0%}" for wait in known.values())
        return growth, f"ranks[].core_wait: the share of its time in which each was ready and had no core: {shares}"
    apart = [evidence.computing(rank) for rank in range(len(evidence.ranks)) if rank not in crowded]
    together = statistics.median(evidence.computing(rank) for rank in crowded)
    alone = statistics.median(apart) if apart else together
    return max(together - alone, 0.0), f"they compute {ms(together)} of a step, ranks with a core each {ms(alone)}"


def staged(evidence: Evidence, nominal: float | None) -> Cause | None:
    """Gradients on a GPU travel through the host's memory."""
    record = evidence.record
    if record["device"] != "cuda" or record.get("backend") not in ("gloo", "mpi"):
        return None
    return Cause(
        "staged",
        f"Gradients are on a GPU, but {record.get('backend')} sends them: each message is copied to the host and back.",
        "device and backend of the record",
        (
            Change(
                "one GPU for each rank, so that NCCL can be used; for Horovod, a build with NCCL (docs/images.md)",
                evidence.exposed,
            ),
        ),
    )


RULES: tuple[Rule, ...] = (
    starving, slow_rank, late_rank, launch_gaps, slow_compressor, poor_link, small_messages, wrong_interface,
    too_many_threads, shared_processor, staged,
)  # fmt: skip
