"""The words of a diagnosis that only the profiler's files of a job give: clocks, collectives by size, who waits."""

from wirebench.bench.collectives import size_text
from wirebench.diagnose.evidence import Evidence
from wirebench.diagnose.job import DDP, FRAMEWORKS, RecordedJob, SizeClass
from wirebench.diagnose.words import aligned, gbit, ms
from wirebench.planner.ddp_caps import caps_of_elements, caps_text

MOST_ROWS = 8
"""Rows of a table; --json has all."""
MOST_BUCKETS = 12


def opening(evidence: Evidence, job: RecordedJob) -> list[str]:
    """What the files are, and how far their clocks agree."""
    record = evidence.record
    ranks, backend = len(evidence.ranks), str(record["backend"]).upper() if record["backend"] == "nccl" else "Gloo"
    told = [
        f"{ranks} of {record['world_size']} ranks, {FRAMEWORKS[job.framework]} over {backend}, {job.steps} steps each."
    ]
    if job.left_out:
        told.append(f"Steps that exchange nothing or have no backward pass are left out: {job.left_out} of a file.")
    if job.quiet:
        told.append(
            f"Gradients accumulate: {job.passes - job.quiet} of the {job.passes} backward passes of a step "
            f"{'exchanges' if job.passes - job.quiet == 1 else 'exchange'} them."
        )
    for each in job.clocks:
        told.append(
            f"Rank {each.rank}'s clock is {ms(abs(each.offset))} {'ahead of' if each.offset >= 0 else 'behind'} the "
            f"first one's, by the ends of {each.ends} collectives, which agree within {ms(each.spread)}."
        )
    if ranks == 1 and record["world_size"] > 1:
        told.append("One file says nothing of other ranks: what it waits for them is in the exchange.")
    return [*told, ""]


def job_lines(evidence: Evidence, job: RecordedJob, nominal: float | None) -> list[str]:
    """Tables of collectives and of ranks, the GPU's gaps, the buckets, and what compressors would break even at."""
    told = [*_collectives(evidence, job, nominal), *_ranks(evidence, job)]
    gaps = [gap for each in evidence.ranks if (gap := each.get("launch_gap")) is not None]
    if gaps:
        told += [f"The GPU is idle {ms(max(gaps))} of a step, at most, while the host launches.", ""]
    if job.buckets:
        told += _buckets(evidence, job)
    if job.break_evens:
        even = ", ".join(f"{name} {gbit(rate)} Gbit/s" for name, rate in job.break_evens.items())
        told += [f"Below these rates a compressor takes less time than its bytes save: {even}.", ""]
    return told


def _collectives(evidence: Evidence, job: RecordedJob, nominal: float | None) -> list[str]:
    if not job.sizes:
        return []
    line = [] if nominal is None else ["of the link"]
    table = [["collectives of a step", "count", "size", "busbw", *line, "exposed"]]
    for each in job.sizes[:MOST_ROWS]:
        bus = "" if each.bus is None else f"{gbit(each.bus)} Gbit/s"
        share = [] if nominal is None else ["" if each.bus is None else f"{each.bus / nominal:.0%}"]
        exposed = f"{ms(each.exposed)} ({each.exposed / evidence.whole:.0%})"
        table.append(
            [
                _class(each),
                f"{each.number:.3g}",
                size_text(round(each.num_bytes)) if each.num_bytes else "",
                bus,
                *share,
                exposed,
            ]
        )
    return _table(table)


def _class(each: SizeClass) -> str:
    if each.num_bytes == 0:
        return each.kind
    if each.most is None:
        return f"{each.kind}, from {size_text(each.least)}"
    return f"{each.kind}, below {size_text(each.most)}" if not each.least else (
        f"{each.kind}, {size_text(each.least)} to {size_text(each.most)}"
    )  # fmt: skip


def _ranks(evidence: Evidence, job: RecordedJob) -> list[str]:
    if len(evidence.ranks) < 2:
        return []
    table = [["rank", "computes", "data", "waits for others", "others wait for it", "comes last"]]
    for place, each in enumerate(evidence.ranks):
        came = job.arrival(each["rank"])
        late = ["", "", ""] if came is None else [ms(came.waited), ms(came.held), f"{came.last:.0%}"]
        table.append([str(each["rank"]), ms(evidence.computing(place)), ms(each["phases"]["data"]), *late])
    return _table(table)


def _buckets(evidence: Evidence, job: RecordedJob) -> list[str]:
    sizes = [size_text(each) for each in job.buckets]
    more = f" and {len(sizes) - MOST_BUCKETS} more" * (len(sizes) > MOST_BUCKETS)
    told = [f"Gradient messages in effect, in backward order: {', '.join(sizes[:MOST_BUCKETS])}{more}."]
    if job.merge and job.framework == DDP:
        caps = caps_of_elements(job.merge)
        shown = f"bucket_cap_mb_list={caps_text(caps)}" if len(caps) <= MOST_BUCKETS else f"{len(caps)} messages"
        gain = max(job.merge_gain, 0.0)
        told.append(f"The planner's merge, {shown}, saves {ms(gain)} of a step ({gain / evidence.step:.0%}).")
    return [*told, ""]


def _table(rows: list[list[str]]) -> list[str]:
    """Columns of text, the first one to the left and all others to the right; a blank line ends it."""
    return [*(f"  {line}".rstrip() for line in aligned(rows, str.rjust)), ""]
