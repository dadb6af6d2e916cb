"""What the site shows: every study's claims with their findings, its tables and figures, and its machines."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from papers import benchmarks
from papers.accuracy import known
from papers.claim import STATES, Claim, State, Verdict, together
from papers.findings import Finding, with_unrun
from papers.page import Page
from papers.published import Published
from papers.runner import ROOT
from papers.study import Study, available
from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.notes import NotedRun, processor


@dataclass(frozen=True)
class Section:
    """A study: what is claimed, what was found, and its tables and figures.

    missing  why there is none, or one less
    """

    name: str
    published: Published
    findings: Sequence[Finding]
    pages: Sequence[Page]
    missing: str = ""

    @property
    def is_paper(self) -> bool:
        """Whether a claim is a paper's, and not the suite's own."""
        return not all(claim.own for claim in self._claims)

    @property
    def title(self) -> str:
        """The paper's, or what the study is about."""
        return self.published.source["title"] if self.is_paper else self.published.about

    @property
    def claims(self) -> list["JudgedClaim"]:
        """Every claim with all that was found of it."""
        of = {claim.id: [each for each in self.findings if each.claim.id == claim.id] for claim in self._claims}
        return [JudgedClaim(claim, of[claim.id]) for claim in self._claims]

    @property
    def _claims(self) -> Iterable[Claim]:
        return self.published.claims.values()


class JudgedClaim(NamedTuple):
    """A claim and its findings: one for each setting, network or variant that it was judged in."""

    claim: Claim
    findings: Sequence[Finding]

    @property
    def verdict(self) -> Verdict:
        """The verdict that is the furthest from reproduced, of all findings."""
        return together({each.about or each.here: each.verdict for each in self.findings}, self.claim.contradicted)

    @property
    def state(self) -> State:
        """The verdict's."""
        return self.verdict.state

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules of trust that the records break which the verdict rests on."""
        resting = [each for each in self.findings if each.verdict.state == self.state]
        return tuple(dict.fromkeys(rule for each in resting for rule in each.broken))


def command(section: Section, judged: JudgedClaim) -> str:
    """What measures a claim, or computes it where no record is needed."""
    own = next((each.command for each in judged.findings if each.command), "")
    there = judged.claim.cluster if judged.state == "not run here" else ""
    computed = judged.state != "not run here" and not any(each.records for each in judged.findings)
    study = f"wirebench study {section.name} {'report' if computed else 'run'}"
    return judged.claim.command or own or there or study


def gather() -> list[Section]:
    """All studies: the papers', then the suite's own. A study whose runs are not there has no tables."""
    sections = [_section(Study(name)) for name in available()]
    return sorted(sections, key=lambda section: not section.is_paper)


def _section(study: Study) -> Section:
    findings: list[Finding] = []
    pages: list[Page] = []
    missing = ""
    for options in study.committed():
        # Claims may rest on another study's runs, or on none, where there is no table of this one's.
        try:
            findings += study.report.findings(options)
            pages += study.pages(options)
        except UserError as error:
            missing = str(error).replace(f"{ROOT}/", "")
    claims = study.published.claims.values()
    return Section(study.name, study.published, with_unrun(findings, claims), pages, missing)


class Tally(NamedTuple):
    """How many claims have a verdict; and of these, how many a rule of trust marks."""

    claims: int
    broken: int

    def words(self, state: State) -> str:
        """The count as an entry in a list of verdicts."""
        return f"{self.claims} {state}" + (f" (of these {self.broken} {BROKEN})" if self.broken else "")

    @property
    def cell(self) -> str:
        """In a table whose columns are verdicts."""
        return f"{self.claims} ({self.broken})" if self.broken else str(self.claims)


BROKEN = "marked by a rule"


def counted(sections: Sequence[Section], papers: bool | None = None) -> dict[State, Tally]:
    """The claims by their verdict. papers: the claims of papers alone, or of this suite alone."""
    of: dict[State, list[JudgedClaim]] = {state: [] for state in STATES}
    for section in sections:
        for judged in section.claims:
            if papers in (None, not judged.claim.own):
                of[judged.state].append(judged)
    return {
        state: Tally(len(those), sum(bool(judged.rules) for judged in those)) for state, those in of.items() if those
    }


def flagged(sections: Sequence[Section]) -> list[tuple[Path, str]]:
    """The runs behind findings and tables that converge otherwise than the reference runs of their method, and how."""
    try:
        return known.flagged(_evidence(sections)[0])
    except UserError:
        return []  # a reference that cannot be read: the section of its study says so


def machines(sections: Sequence[Section]) -> list[tuple[str, ...]]:
    """The machines of all records that a finding or a table rests on: cells of a table, with how many records each."""
    count: dict[tuple[str, ...], int] = {}
    runs, files = _evidence(sections)
    for told in (*(run.record for run in runs), *map(benchmarks.header, files)):
        made_by = benchmarks.calls(told)
        for machine in dict.fromkeys(_machine(call["environment"]) for call in made_by):
            count[machine] = count.get(machine, 0) + 1
    return [(*machine, str(number)) for machine, number in sorted(count.items(), key=lambda each: -each[1])]


MACHINE_HEAD = ("processor", "cores", "GPU", "PyTorch", "Python", "records")


def _machine(environment: Mapping[str, Any]) -> tuple[str, ...]:
    cpu, versions = environment["cpu"], environment["versions"]
    gpus = ", ".join(str(gpu.get("name", gpu)) if isinstance(gpu, dict) else str(gpu) for gpu in environment["gpus"])
    return processor(cpu), str(cpu["cores"]), gpus or "none", versions["torch"], versions["python"]


def _evidence(sections: Sequence[Section]) -> tuple[list[NotedRun], list[Path]]:
    """The runs and the files of benchmarks that tables and findings rest on, by path."""
    folders = {page.folder for section in sections for page in section.pages}
    named = {path for section in sections for finding in section.findings for path in finding.records}
    runs = {run.folder: run for path in folders | named for run in recorded.below(path)}
    return [runs[path] for path in sorted(runs)], sorted(path for path in named if path.is_file())
