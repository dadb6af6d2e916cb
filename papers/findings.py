"""What a study found of its claims: the same lines in every table, and all that a page needs to lead to the records."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from papers import judged, trust
from papers.claim import Claim, Verdict
from papers.rows import Row
from wirebench.utils.markdown import table

HEAD = ("claim", "where", "claimed", "here [95 % interval]", "verdict", "breaks rules")


@dataclass(frozen=True)
class Finding:
    """A claim beside what was measured of it.

    here     the measurement in words, with its spread
    verdict  on it
    about    which of the claim's settings, models or variants this is of; "" if there is only one
    figure   what is claimed of this one, where that is not the claim's own figure
    records  that it rests on: files, or folders of runs; none where it is computed
    rules    of wirebench/record/rules.py that the records break
    command  that makes the records, where that is not the study's own `run` without flags
    """

    claim: Claim
    here: str
    verdict: Verdict
    about: str = ""
    figure: str = ""
    records: tuple[Path, ...] = ()
    rules: tuple[str, ...] = ()
    command: str = ""

    def __post_init__(self) -> None:
        """A verdict is what the setting of its runs allows, wherever it is shown."""
        object.__setattr__(self, "verdict", judged.placed(self.claim, self.verdict, self.records))

    @property
    def broken(self) -> tuple[str, ...]:
        """The rules that the records break, and the rule of tolerances if the claim breaks it."""
        marked = self.claim.retold and self.verdict.state != "not run here"
        return (*self.rules, *(["tolerance"] if marked else []))

    @property
    def text(self) -> str:
        """The claim in words, with what this is of."""
        return f"{self.claim.text}: {self.about}" if self.about else self.claim.text

    @property
    def claimed(self) -> str:
        """The figure; with its tolerance where that changed with results at hand."""
        figure, claim = self.figure or self.claim.figure(), self.claim
        return f"{figure} (tolerance {claim.tolerance:g}; {claim.retold})" if claim.retold else figure


def of_rows(
    claim: Claim, here: str, verdict: Verdict, rows: Iterable[Row], about: str = "", figure: str = "",
    needs: str = "turns", command: str = "",
) -> Finding:  # fmt: skip
    """A finding that rests on all runs of these rows.

    needs  what the claim needs several of: turns or seeds
    """
    of = [row.runs for row in rows]
    records = tuple(run.folder for runs in of for run in runs)
    return Finding(claim, here, verdict, about, figure, records, trust.rules_of(of, needs), command)


def instead(here: Sequence[Finding], there: Sequence[Finding]) -> list[Finding]:
    """All findings of both, without findings of here that the runs on a cluster also have (same claim, same
    `about`).
    """
    known = {
        (each.claim.id, about) for each in there if each.records for about in (each.about, each.about.partition(",")[0])
    }
    return [*(each for each in here if (each.claim.id, each.about) not in known), *there]


def with_unrun(findings: Sequence[Finding], claims: Iterable[Claim]) -> list[Finding]:
    """All claims in their order, each with its findings; one without any was not run here, for the claim's reason."""
    of: dict[str, list[Finding]] = {}
    for finding in findings:
        of.setdefault(finding.claim.id, []).append(finding)
    return [each for claim in claims for each in of.get(claim.id) or [unrun(claim)]]


def unrun(claim: Claim) -> Finding:
    """Finding for a claim without measurements: it names the command that makes them."""
    how = claim.cluster or claim.command
    return Finding(claim, f"by `{how}`" if how else "-", claim.judge(None))


def lines(findings: Iterable[Finding]) -> list[list[str]]:
    """The cells of a table, a line for each."""
    return [
        [each.text, each.claim.where, each.claimed, each.here, each.verdict.words, ", ".join(each.broken) or "-"]
        for each in findings
    ]


def claims_table(findings: Sequence[Finding]) -> list[str]:
    """A Markdown table; nothing where there is no finding."""
    return table(HEAD, lines(findings)) if findings else []
