"""Whether everything that is committed of the studies is what their records give: tables, documents."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from papers import index, judged, shipped
from papers.site import content, readme, reproduce
from papers.study import Study
from wirebench.bench import plot_collectives, plot_compressors
from wirebench.figures.files import shows
from wirebench.figures.provenance import provenance
from wirebench.figures.style import Figure
from wirebench.record import collective_results, compressor_results
from wirebench.topology.rates import parse_rate
from wirebench.utils import user_files

BENCH_LINK = "200mbit"
"""The rate of the links in the figure of collectives: the file of cells does not say it."""


def drifts(root: Path, results: Path) -> list[str]:
    """A line for each file that its records do not give, or that cannot be made of them.

    results  the folder that studies read (runner.py's RESULTS)
    """
    sections = content.gather()
    found = [f"{section.name}: {section.missing}" for section in sections if section.missing]
    found += of_verdicts(root, sections)
    found += [said for section in sections for page in section.pages if (said := page.drift()) is not None]
    guide, figure = root / readme.FILE, results / readme.FIGURE
    again = "run: wirebench study report --docs ."
    if not shows(figure, readme.verdicts(sections)):
        found.append(f"{figure}: is not the figure of its records; {again}")
    if not index.is_current():
        found.append(f"{index.FILE}: has not the numbers of the records; {again}")
    found += of_benchmarks(results)
    # Results elsewhere are a reader's own (make tables QUICK=1), of which the documents say nothing.
    if results == root / "results" and user_files.read(guide) != readme.text(sections, guide):
        found.append(f"{guide}: its verdicts are not those of the records; {again}")
    rows = root / reproduce.FILE
    if results == root / "results" and user_files.read(rows) != reproduce.text(sections, rows):
        found.append(f"{rows}: is not what claims, configs and records say; {again}")
    if results == root / "results":
        found += shipped.drifts()
    return found


def of_verdicts(root: Path, sections: Sequence[content.Section]) -> list[str]:
    """Drifts of verdicts at another setting than their claim's, and of figures that changed with results at hand."""
    found = []
    for section in sections:
        versions = judged.versions(root, Study(section.name).folder)
        tables = "\n".join(user_files.read(page.path) for page in section.pages if page.path.is_file())
        for finding in section.findings:
            if finding.verdict.state == "not run here":
                continue
            broken = [
                *judged.faults(finding.claim, finding.text, finding.records, tables),
                *judged.changed(finding.claim, finding.records, versions),
            ]
            found += [f"{section.name}: {each.rule}: {each.how}" for each in broken]
    return list(dict.fromkeys(found))


def of_benchmarks(results: Path) -> list[str]:
    """Drifts of figures that belong to no study: they differ from their file's data, or from how they were drawn."""
    found = [path for path, figure in benchmark_figures(results) if figure is None or not shows(path, figure)]
    return [f"{path}: is not the figure of its records; run: wirebench bench" for path in found]


def benchmark_figures(results: Path) -> Iterator[tuple[Path, Figure | None]]:
    """The figures that benchmarks draw of their cells, by path; None for a file whose cells are missing.

    Not every file of cells has figures, but every figure has its cells: of compressors in cells.jsonl; of collectives
    KIND-STEM.svg and, of a wire format, KIND-STEM-FORMAT.svg have them in STEM.jsonl.
    """
    for file in sorted(results.glob("*/compressors/cells.jsonl")):
        measured = compressor_results.load(file)
        note, where = plot_compressors.note_of(measured.header), provenance([measured.header["environment"]])
        drawn = plot_compressors.figures(measured.cells, note, where)
        yield from ((path, drawn.get(path.name)) for path in sorted(file.parent.glob("*.svg")))
    for path in sorted(results.glob("*/collectives/*.svg")):
        stem = path.stem.partition("-")[2]
        stem = stem if path.with_name(f"{stem}.jsonl").is_file() else stem.rpartition("-")[0]
        cells = path.with_name(f"{stem}.jsonl")
        known = cells.is_file()
        drawn = plot_collectives.figures(stem, collective_results.load(cells), parse_rate(BENCH_LINK)) if known else {}
        yield path, drawn.get(path.name)
