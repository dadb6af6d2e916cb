"""Whether everything that is committed of the studies is what their records give: tables, the page, README.md."""

from pathlib import Path

from suite.bench import plot_compressors
from suite.figures.files import intact, shows
from suite.figures.provenance import provenance
from suite.webpage import content, overview, readme, render
from wirebench.record import compressor_results
from wirebench.utils.markdown import text_of

PAGE = "report.html"


def drifts(root: Path, results: Path) -> list[str]:
    """A line for each file that its records do not give, or that cannot be made of them.

    results  the folder that studies read (runner.py's RESULTS)
    """
    sections = content.gather()
    found = [f"{section.name}: {section.missing}" for section in sections if section.missing]
    found += [said for section in sections for page in section.pages if (said := page.drift()) is not None]
    page, guide = results / PAGE, root / "README.md"
    figure = results / readme.FIGURE
    again = "run: wirebench study report --html results/report.html --readme README.md"
    if not page.exists() or text_of(page) != render.html(sections, results):
        found.append(f"{page}: is not the page of its records; {again}")
    if not shows(figure, overview.verdicts(sections)):
        found.append(f"{figure}: is not the figure of its records; {again}")
    found += _benchmarks(results)
    # Results elsewhere are a reader's own (make tables QUICK=1), of which README.md says nothing.
    if results == root / "results" and text_of(guide) != readme.text(sections, guide, page):
        found.append(f"{guide}: what it says was found is not what the records say; {again}")
    return found


def _benchmarks(results: Path) -> list[str]:
    """Of figures that belong to no study: those that are not what their file gives, or not as they were drawn."""
    found = []
    for file in sorted(results.glob("*/compressors/cells.jsonl")):
        measured = compressor_results.load(file)
        note, where = plot_compressors.note_of(measured.header), provenance([measured.header["environment"]])
        drawn = plot_compressors.figures(measured.cells, note, where)
        found += [file.with_name(name) for name, figure in drawn.items() if not shows(file.with_name(name), figure)]
    found += [path for path in sorted(results.glob("*/collectives/*.png")) if not intact(path)]
    return [f"{path}: is not the figure of its records; run: wirebench bench" for path in found]
