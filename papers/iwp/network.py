"""Network I/O on emulated hosts: what the interface sent in a second, as KB/s and as a share of the link's rate."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from papers import trust
from papers.claim import Claim, Verdict
from papers.estimate import Estimate, mean, ratio_of_turns
from papers.findings import Finding, of_rows
from papers.iwp.variants import DENSE, FIXED, kind, unlabelled
from papers.rows import Row, ms
from papers.rows import load as load_rows
from wirebench.record import notes, recorded
from wirebench.record.notes import NotedRun
from wirebench.topology.rates import parse_rate
from wirebench.utils.markdown import table

HEAD = ("method", "turns", "KB/s sent by a host [95 % interval]", "share of the link %", "step ms", "bytes of a step")


def load(folder: Path) -> list[Row]:
    """The methods, by what the table calls them; nothing where there is no run."""
    return load_rows(folder) if recorded.directly_below(folder) else []


def rate(run: NotedRun) -> float | None:
    """Bytes in a second on the interface of a host, in the counted steps: bytes of a step over the mean step.

    All of a step's bytes over all of its time need the mean; records have it as images over images a second.
    """
    sent, images = run.has("bytes_per_step", "nic"), run.has("images_per_second", "mean")
    batch = run.has("config", "data", "batch_size")
    return sent * images / (batch * run.record["world_size"]) if sent and images and batch else None


def findings(rows: Sequence[Row], claims: Mapping[str, Claim]) -> Iterator[Finding]:
    """How full the link is with dense training, and how much less IWP sends, for each of its thresholds."""
    known = {unlabelled(row.label): row for row in rows if not row.diverged}
    dense = known.get(DENSE)
    if dense is None:
        return
    if not all(run.note.get("link") for row in rows for run in row.runs):
        unknown = Verdict("not run here", why="the rate of the links is not noted: run --link")
        yield from (Finding(claim, "-", unknown) for claim in claims.values() if "io" in claim.about)
        return
    for claim in claims.values():
        if claim.about.get("io") == DENSE and (shares := _shares(dense)):
            yield _finding(claim, shares, shares.percent(), "", (dense,))
        for label, row in known.items():
            if claim.about.get("io") == FIXED == kind(label) and (ratios := _ratios(dense, row)):
                yield _finding(claim, ratios, ratios.words(), label, (dense, row))


def _shares(row: Row) -> Estimate | None:
    shares = [each / (parse_rate(run.note["link"]) / 8) for run in row.runs if (each := rate(run))]
    return mean(shares) if shares else None


def _ratios(dense: Row, row: Row) -> Estimate | None:
    return ratio_of_turns(dense.by_turn(rate), row.by_turn(rate))


def _finding(claim: Claim, measured: Estimate, here: str, about: str, rows: Sequence[Row]) -> Finding:
    other = next((said for row in rows for run in row.runs if (said := _otherwise(claim, run))), "")
    # How full a link is, and what a method saves of it, is a matter of the model and of the link's rate.
    verdict = Verdict("other setting", measured.value, other) if other else claim.judge(measured)
    return of_rows(claim, here, verdict, rows, about)


def _otherwise(claim: Claim, run: NotedRun) -> str:
    """How the run differs from the claim's setting; "" where it does not."""
    model, link = run.record["config"]["model"]["name"], run.note["link"]
    if model == claim.about["model"] and parse_rate(link) == parse_rate(claim.about["link"]):
        return ""
    return f"measured of {model} on links of {link}, the claim is of {claim.about['model']} on {claim.about['link']}"


def document(rows: Sequence[Row]) -> str:
    """The table of the part."""
    run = rows[0].runs[0]
    config = run.record["config"]
    lines = [_cells(row) for row in sorted(rows, key=lambda row: row.label)]
    return "\n".join(
        [
            "# Network I/O: dense training and IWP",
            "",
            f"{config['model']['name']} on {config['data']['name']}, {run.note['hosts']} emulated hosts of one worker "
            f"with {config['data']['batch_size']} images, links of {run.note['link']}, on {run.machine}; made by "
            f"`wirebench study iwp run`, {notes.commits(each for row in rows for each in row.runs)}.",
            "",
            *table(HEAD, lines),
            *trust.note({unlabelled(row.label): row.runs for row in rows}, "turns"),
            "KB/s (1 KB = 1000 bytes) are what the kernel counted on the interface of rank 0's host, headers included, "
            "over all counted steps.",
            "",
            "![network I/O](carried.svg)",
            "",
        ]
    )


def _cells(row: Row) -> list[str]:
    rates, shares = list(row.by_turn(rate).values()), _shares(row)
    sent = row.median("bytes_per_step", "nic")
    known = mean(rates).mapped(lambda each: each / 1e3).words("{:.0f}", "{:.0f}") if rates else "-"
    share = f"{100 * shares.value:.1f}" if shares else "-"
    title = unlabelled(row.label) + (" (diverged)" if row.diverged else "")
    cells = [title, str(len(row.runs)), known, share, ms(row.step_seconds, 0)]
    return [*cells, f"{sent / 1e3:.0f} kB" if sent else "-"]
