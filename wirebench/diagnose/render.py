"""The words of a diagnosis: where the step goes, the link, the break-even, the findings."""

from collections.abc import Sequence
from typing import Any

from wirebench.bench.collectives import size_text
from wirebench.diagnose.busy import busy
from wirebench.diagnose.cause import Cause
from wirebench.diagnose.evidence import Evidence
from wirebench.diagnose.exchange import SECONDS, ExchangeRow, rows
from wirebench.diagnose.full_link import NOTABLE
from wirebench.diagnose.job_render import job_lines, opening
from wirebench.diagnose.link import FittedLink
from wirebench.diagnose.measure import NetworkAlone
from wirebench.diagnose.trial import TURNS, Attempt
from wirebench.diagnose.words import aligned, gbit, ms
from wirebench.telemetry.rank_facts import COMPUTING

NO_LINK = "A link cannot be judged by this run."
NOTHING_TO_TRY = "Nothing to try: no setting of a run makes a change that a finding suggests."


def parts(evidence: Evidence) -> dict[str, float]:
    """Seconds of a step, the mean over ranks: computing, data, and the exchange that nothing hides, in its parts."""
    computing = [evidence.computing(rank) for rank in range(len(evidence.ranks))]
    exposed = evidence.phase("exchange_exposed")
    waiting = min(max(computing) - sum(computing) / len(computing), exposed)
    if evidence.job is not None and evidence.job.arrivals:
        waiting = min(sum(each.waited for each in evidence.job.arrivals) / len(evidence.ranks), exposed)
    known = {name: evidence.phase(name) for name in COMPUTING}
    told = sum(known.values()) + evidence.phase("data") + exposed
    return {
        **known,
        "data": evidence.phase("data"),
        "waiting for the slowest rank": waiting,
        _exchange(evidence): exposed - waiting,
        "other": evidence.whole - told,
    }


def lines(evidence: Evidence, found: Sequence[Cause], nominal: float | None) -> list[str]:
    """The diagnosis."""
    told = [*_under_way(evidence), *busy(evidence.record), _step(evidence)]
    told += [_part(name, seconds, f"{seconds / evidence.whole:7.1%}") for name, seconds in parts(evidence).items()]
    beside = "inside" if evidence.is_virtual else "beside"
    if evidence.job is None:
        told.append(_part(f"compressing, {beside} them", evidence.phase("compress")))
    told += ["", *(job_lines(evidence, evidence.job, nominal) if evidence.job else [])]
    if not evidence.has_network:
        told += [_computed(evidence), ""]
    else:
        told += _rows(evidence)
        network = _network(evidence, nominal)
        told += [*network, ""] if network else []
    if not found:
        return [*told, *_nothing(evidence)]
    for number, each in enumerate(found, 1):
        told += [f"{number}. {each.sentence}", f"   known by: {each.evidence}"]
        told += _changes(each, evidence)
        told += [f"   {remark}" for remark in each.remarks]
    return told


def _changes(finding: Cause, evidence: Evidence) -> list[str]:
    """A line, or a table where the changes are other compressors."""
    if all(each.wire_bytes is None for each in finding.changes):
        return [f"   change: {each.what}; it may save {_share(each.gain, evidence)}" for each in finding.changes]
    table = [("change", "sent a step", "may save", "accuracy"), ("as it is", _bytes(evidence.wire_bytes), "", "")]
    table += [(each.what, _bytes(each.wire_bytes), _share(each.gain, evidence), each.accuracy)
              for each in finding.changes]  # fmt: skip
    return [f"   {line}".rstrip() for line in aligned(table, str.ljust)]


def _bytes(count: float | None) -> str:
    return "" if count is None else f"{count / 1e6:.4g} MB" if count >= 1e6 else f"{count / 1e3:.4g} kB"


def _share(seconds: float, evidence: Evidence) -> str:
    return f"{ms(seconds)} a step ({seconds / evidence.step:.0%})"


def _step(evidence: Evidence) -> str:
    """The heading of the parts: slow steps make means longer than the median."""
    whole, step = ms(evidence.whole), ms(evidence.step)
    if whole == step:
        return f"A step takes {step}:"
    return f"A step takes {step} (median). The parts are means and add up to {whole}, since some steps were slower:"


def _computed(evidence: Evidence) -> str:
    """What the exchange of a single process is: virtual workers', or of one rank with itself."""
    seconds, compress = evidence.phase("exchange_exposed"), evidence.phase("compress")
    share = f"{ms(seconds)} a step ({seconds / evidence.whole:.0%})"
    if evidence.is_virtual:
        share += f", {ms(compress)} of it compressing, the rest sums and copies"
    return f"No network: the exchange is computed in this process, {share}. {NO_LINK}"


def _nothing(evidence: Evidence) -> list[str]:
    """The verdict if no rule finds anything, with the exchange's share of the step unless that is negligible."""
    share = parts(evidence)[_exchange(evidence)] / evidence.whole
    if share < NOTABLE:
        return ["Nothing stands out: no cause that a rule knows takes 5 % of the step."]
    if not evidence.has_network:
        return [f"The exchange, computed in this process, takes {share:.0%} of the step; nothing else stands out."]
    return [f"No rule finds a cause of 5 % of the step. The exchange adds {share:.0%}, and no rule knows why."]


def _exchange(evidence: Evidence) -> str:
    """The name of the exchange among the parts."""
    return "exchange, not hidden" if evidence.has_network else "exchange, computed here"


def measured_lines(measured: NetworkAlone, evidence: Evidence, nominal: float | None) -> list[str]:
    """The network alone, beside what the run got and what the link should give."""
    told = [f"The network alone, all-reduces of {measured.by}:"]
    if measured.differs:
        told.append(f"  (the run was {measured.differs})")
    told += [f"  {size_text(size):>9} {ms(seconds):>10}" for size, seconds in measured.times]
    rows = {
        "nominal": FittedLink(evidence.nominal_start, nominal),
        "alone": measured.link,
        "in the run": evidence.link,
    }
    return [*told, *(f"  {name:12} {_link(link)}" for name, link in rows.items()), ""]


def trial_lines(trial: Attempt, evidence: Evidence) -> list[str]:
    """What changes were predicted to save, and what they saved."""
    told = ["", f"Tried in {TURNS} turns, {trial.steps} steps each:"]
    told += [f"  {line}" for line in (*busy(evidence.record), *trial.busy)]
    if trial.passed_over:
        told.append(f"  (no setting makes the change of: {', '.join(trial.passed_over)})")
    told.append(f"  as it was    {ms(trial.before)} a step (the record has {ms(evidence.step)})")
    for each in trial.tried:
        saved = f"{_saved(each.saving, trial.before)}, the median of {', '.join(map(ms, each.saved))}"
        told += [
            f"  {each.shown}",
            f"    with it    {ms(each.after)} a step",
            f"    predicted  {_saved(each.change.gain, evidence.step)}",
            f"    measured   {saved}",
        ]
    return told


def as_json(evidence: Evidence, found: Sequence[Cause], nominal: float | None) -> dict[str, Any]:
    """The diagnosis as JSON values."""
    return {
        "under_way": None if evidence.under_way is None else evidence.under_way._asdict(),
        "step_seconds": evidence.step,
        "busy": busy(evidence.record),
        "ranks_seen": evidence.ranks_seen,
        "parts": parts(evidence),
        "exchange": [row._asdict() for row in rows(evidence)],
        "link": {
            **evidence.link._asdict(), "nominal_bytes_per_second": nominal,
            "nominal_start_seconds": evidence.nominal_start,
        },
        "alone": evidence.alone._asdict(),
        "break_even_bytes_per_second": break_even(evidence),
        "job": None if evidence.job is None else evidence.job.as_json(),
        "findings": [_finding_json(each) for each in found],
    }  # fmt: skip


def _finding_json(finding: Cause) -> dict[str, Any]:
    return {
        "name": finding.name, "sentence": finding.sentence, "evidence": finding.evidence, "gain": finding.gain,
        "changes": [each._asdict() for each in finding.changes], "remarks": list(finding.remarks),
    }  # fmt: skip


def trial_json(trial: Attempt) -> dict[str, Any]:
    """A trial as JSON values."""
    return {
        "passed_over": list(trial.passed_over),
        "steps": trial.steps,
        "before_seconds": trial.before,
        "befores_seconds": list(trial.befores),
        "busy": list(trial.busy),
        "tried": [
            {
                "finding": each.finding,
                "command": each.shown,
                "after_seconds": each.after,
                "predicted_saving_seconds": each.change.gain,
                "afters_seconds": list(each.afters),
                "measured_saving_seconds": each.saving,
                "savings_by_turn_seconds": list(each.saved),
            }
            for each in trial.tried
        ],
    }


def break_even(evidence: Evidence) -> float | None:
    """Bytes per second below which compressing takes less time than it saves; None without a compressor's work."""
    seconds, saved = evidence.phase("compress"), evidence.saved_bytes
    compresses = evidence.plugin("compressor") != "none" and not evidence.is_virtual
    return saved / seconds if compresses and seconds > 0 and saved is not None and saved > 0 else None


def _under_way(evidence: Evidence) -> list[str]:
    now = evidence.under_way
    if now is None:
        # Virtual workers are one process, which has the phases of all of them.
        several = evidence.record["world_size"] > 1 and not evidence.is_virtual
        if evidence.job is not None:
            return opening(evidence, evidence.job)
        alone = several and evidence.ranks_seen == [0]
        return ["This record has rank 0's phases alone: what it waits for others is in the exchange.", ""] * alone
    of = f" of {now.total}" if now.total else ""
    state = "has no record: it was killed, or is stuck" if now.silent else "is under way"
    counted = f"{now.counted} of them count" if now.counted else "none of them counts yet, so these are of the warm-up"
    return [
        f"This run {state}; {now.steps}{of} steps are logged, the last one {now.age_seconds:.3g} s ago; {counted}.",
        "Until it ends only rank 0's phases are known: what it waits for other ranks is in the exchange.",
        "",
    ]


def _rows(evidence: Evidence) -> list[str]:
    """A line for each row of the exchange whose value is known, below a heading; [] if there is none."""
    known = [_row(row) for row in rows(evidence) if row.value is not None]
    return ["Of the exchange, hidden or not, as rank 0 saw it:", *known, ""] if known else []


def _row(row: ExchangeRow) -> str:
    value = row.value or 0.0
    return f"  {row.name:28} {ms(value) if row.unit == SECONDS else f'{gbit(value)} Gbit/s':>12}  {row.evidence}"


def _network(evidence: Evidence, nominal: float | None) -> list[str]:
    link, told = evidence.link, []
    if evidence.on_one_host:
        told.append(f"All ranks are on one host, and no message leaves it. {NO_LINK}")
    if link.bytes_per_second is not None:
        least = "" if link.start_seconds is not None else " at least"
        told.append(
            f"Messages travel at {gbit(link.bytes_per_second)} Gbit/s{least}"
            + (f"; the link has {gbit(nominal)}." if nominal and not evidence.on_one_host else ".")
        )
    if link.start_seconds is not None:
        told.append(f"Starting a round takes {ms(link.start_seconds)}.")
    if not evidence.messages and evidence.under_way is None:
        told.append(
            "The run drew no messages (trace.json), so the network's part is not known."
            if evidence.job is None
            else "The files do not say how large the messages are, so the network's part is not known."
        )
    if (rate := break_even(evidence)) is not None:
        told.append(f"This compressor pays below {gbit(rate)} Gbit/s, by its time and its bytes.")
    return told


def _link(link: FittedLink) -> str:
    rate = "not known" if link.bytes_per_second is None else f"{gbit(link.bytes_per_second)} Gbit/s"
    return rate if link.start_seconds is None else f"{rate}, {ms(link.start_seconds)} to start"


def _saved(seconds: float, step: float) -> str:
    return f"{ms(abs(seconds))} a step {'saved' if seconds >= 0 else 'lost'} ({seconds / step:+.0%})"


def _part(name: str, seconds: float, share: str = "") -> str:
    return f"  {name:28} {ms(seconds):>9}{share}"
