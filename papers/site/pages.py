"""The pages that the site has beside those of the repository, as Markdown: claims, a page per study, and records."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from papers.committed import EXCEPTIONS, excuses, runs_of
from papers.runner import RESULTS, ROOT
from papers.site.content import MACHINE_HEAD, JudgedClaim, Section, command, counted, flagged, machines
from wirebench.record import compare, recorded
from wirebench.record.gpu_use import gpu_use
from wirebench.record.notes import NotedRun
from wirebench.utils.markdown import table

CLAIMS, RECORDS = "claims.md", "records.md"
"""At the root of the site."""
CLAIMS_HEAD = ("study", "of", "claim", "claimed", "here [95 % interval]", "verdict", "evidence")
GPU_HEAD = ("run", "compressor", "scheduler", "GPU", "joules/sample", "joules/point of top1", "sampling")
READING = """
A verdict follows from the records by [one rule](docs/studies.md#verdicts). A claim that was judged in several settings
has the verdict that is the furthest from reproduced. "Marked by" names the
[rules of trust](docs/studies.md#rules-of-trust) that records break.
"""


def study_page(section: Section) -> str:
    """Where a study's page is, from the root of the site."""
    return f"studies/{section.name}/index.md"


def claims(sections: Sequence[Section]) -> str:
    """Every claim with its verdict, its findings and the records that they rest on."""
    count = ", ".join(each.words(state) for state, each in counted(sections).items())
    rows = [_claim_row(section, judged) for section in sections for judged in section.claims]
    return "\n".join(
        [
            "# Claims", "",
            f"{len(rows)} claims of papers and of Wirebench itself: {count}.", READING,
            '<div class="claims" markdown>', "",
            *table(CLAIMS_HEAD, rows),
            "</div>", "",
        ]
    )  # fmt: skip


def _claim_row(section: Section, judged: JudgedClaim) -> list[str]:
    claim = judged.claim
    tolerance = f"tolerance {claim.tolerance:g}; {claim.retold}" if claim.retold else ""
    settings = judged.verdict.settings
    limits = [f"not with: {', '.join(settings)}" if settings else "", judged.verdict.why]
    limits += [f"marked by: {', '.join(judged.rules)}" if judged.rules else ""]
    cells = [
        f"[{section.name}]({study_page(section)})",
        "Wirebench" if claim.own else "a paper",
        claim.text + _small(claim.where),
        claim.figure() + _small(tolerance, claim.setting),
        _here(judged) + _small(*limits),
        judged.state,
        _evidence(section, judged),
    ]
    return [_cell(each) for each in cells]


def _here(judged: JudgedClaim) -> str:
    """The measurements: the only one, or a list of all settings that can be unfolded."""
    several = len(judged.findings) > 1
    lines = []
    for each in judged.findings:
        line = f"**{each.about}:** {each.here}" if each.about else each.here
        if each.figure and each.figure != judged.claim.figure():
            line += f" (claimed: {each.figure})"
        if several:
            line += "".join(f"; {more}" for more in (each.verdict.state, *(f"breaks: {rule}" for rule in each.rules)))
        lines.append(line)
    return _folded(f"{len(lines)} settings", "<br>".join(lines)) if several else lines[0]


def _evidence(section: Section, judged: JudgedClaim) -> str:
    """Links to the records, and the command that makes them."""
    records = dict.fromkeys(record for each in judged.findings for record in each.records)
    how = f"`{command(section, judged)}`"
    if records:
        return _folded(f"{len(records)} records", " ".join(map(record_link, records))) + _small(how)
    named = judged.findings[0].here == f"by `{judged.claim.command}`"
    return ("" if judged.state == "not run here" else "computed") + ("" if named else _small(how))


def record_link(record: Path, page: str = CLAIMS) -> str:
    """A file of a benchmark, or the file with the line of a run, as a link from a page of the site."""
    file = record if record.is_file() else recorded.file_of(record)
    return f"[{'/'.join(record.parts[-2:])}]({link(file, page)})"


def link(path: Path, page: str) -> str:
    """The address of a file of the repository, from a page of the site."""
    return os.path.relpath(path, (ROOT / page).parent)


def _small(*lines: str) -> str:
    return "".join(f"<small>{line}</small>" for line in lines if line)


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>{text}</details>"


def _cell(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text).replace("|", "\\|")


def study(section: Section) -> str:
    """What a study is about, where its claims stand, and its tables."""
    source, page = section.published.source, study_page(section)
    tables = [f"- [{name}]({link(each.path, page)})" for each in section.pages for name in [table_title(each.text)]]
    excluded = [f"- {each.text} ({each.where}): {each.why}." for each in section.published.excluded]
    lines = [
        f"# {section.title}", "",
        *([f"**{section.published.finding}**", ""] if section.published.finding else []),
        *([f"{source['authors']}, {source['published']}.", ""] if section.is_paper else []),
        f"{section.published.about[:1].upper()}{section.published.about[1:]}.", "",
        f"`wirebench study {section.name} run` makes the runs, `wirebench study {section.name} report` the tables.", "",
        *([f"No table: {section.missing}", ""] if section.missing else []),
        *_of_claims(section, page),
        *(["## Tables and charts", "", *tables, ""] if tables else []),
        *(["## Numbers of the source that are no claims", "", *excluded, ""] if excluded else []),
    ]  # fmt: skip
    return "\n".join(lines)


def table_title(text: str) -> str:
    """The heading of a table.md."""
    return text.partition("\n")[0].removeprefix("# ")


def _of_claims(section: Section, page: str) -> Iterable[str]:
    if not section.claims:
        return []
    rows = [[_cell(each.claim.text), each.claim.figure(), each.state] for each in section.claims]
    return ["## Claims", "", *table(("claim", "claimed", "verdict"), rows),
            f"[All claims]({link(ROOT / CLAIMS, page)}) has their measurements and records.", ""]  # fmt: skip


def records(sections: Sequence[Section]) -> str:
    """The machines of all records, what GPUs took, runs that differ from their references, and exceptions."""
    differing = [f"- {record_link(path, RECORDS)}: {said}" for path, said in flagged(sections)]
    excused = [
        f"- {', '.join(each.files)}: {', '.join(each.rules)}: {each.why}" for each in excuses(RESULTS / EXCEPTIONS)
    ]
    gpus = [list(each) for each in _gpus(RESULTS)]
    lines = [
        "# Records", "",
        "## Machines", "",
        "All records of runs, and files of benchmarks, that the tables rest on.", "",
        *table(MACHINE_HEAD, machines(sections)),
        "## GPUs", "",
        "Every record of a run on GPUs. Joules are those of all ranks' GPUs from the first step to the end.", "",
        *table(GPU_HEAD, gpus),
        "## Reference runs", "",
        "A run on CIFAR-10 is compared with other seeds of its method ([how](docs/studies.md#reference-runs)).", "",
        *(differing or ["No run is flagged."]), "",
        "## Exceptions", "",
        "These records break a rule of trust and are committed with a reason.", "",
        *(excused or ["There is none."]), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _gpus(results: Path) -> list[tuple[str, ...]]:
    """Cells by GPU_HEAD of each committed record that says what its GPUs took, in order of the runs' paths."""
    return [_gpu_cells(run, results) for run in runs_of(results) if gpu_use(run.record) is not None]


def _gpu_cells(run: NotedRun, results: Path) -> tuple[str, ...]:
    rows = compare.rows(run.record)
    name = run.folder.relative_to(results).as_posix()
    return (name, *(rows[name] for name in GPU_HEAD[1:-1]), rows.get("GPU sampling", compare.MISSING))
