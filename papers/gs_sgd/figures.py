"""The gs-SGD paper's Fig. 2 to 7 from records: how trainings went, and where the time of a step goes.

Runs come as rows or methods, from any command.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence

from papers.accuracy import figures as course
from papers.accuracy.figures import LOSS, TOP1, CurveMeasure
from papers.accuracy.rows import MethodRuns
from papers.claim import Claim
from papers.gs_sgd.claims import AS_PRINTED, METHODS, model_of, of_method
from papers.gs_sgd.variants import DAMAGING_K, PUBLISHED, SWEEPS, SWEPT, swept
from papers.page import Drawn
from papers.rows import Row, cluster, provenance_of
from wirebench.figures import colours
from wirebench.figures.bars import Bar, Look, stacked
from wirebench.figures.provenance import counted
from wirebench.figures.style import Figure, Panel, around, finished, grid

CONVERGENCE = {"ResNet-20": "fig2.svg", "VGG-16": "fig3.svg"}
TIMES = {"ResNet-20": "fig4.svg", "VGG-16": "fig5.svg"}
ENTRIES = {"VGG-16": "fig6.svg", "ResNet-20": "fig7.svg"}
"""The paper names the networks in this order, and does not say which figure has which."""
COMPARED = ("dense", "gtopk", "sketched_sgd", "gs_sgd", "gs_sgd literal")
"""The paper's three methods, as printed and with our defaults, and dense training."""
TONES = {"gtopk": colours.ORANGE}
"""Its own colour is Sketched-SGD's, of another family."""
COMPUTING, SPARSIFYING, COMMUNICATING = colours.STEP
NETWORKS = ("ResNet-20", "VGG-16")
BROAD = 2 * (course.WIDTH + 170)


def of(rows: Mapping[str, Sequence[Row]], trained: Sequence[Sequence[MethodRuns]], prefix: str = "") -> Drawn:
    """All figures that these records have the data for, and what is missing for the others.

    rows     runs that were timed, by the paper's name of their network
    trained  methods of trainings; the methods of one list share a setting
    prefix   of the file names
    """
    drawn, by_network = Drawn(), _by_network(trained)
    for network in NETWORKS:
        name, groups = f"{prefix}{CONVERGENCE[network]}", by_network.get(network, ())
        drawn.add(name, f"{network}, accuracy and loss", convergence(network, groups))
    for network in NETWORKS:
        name = f"{prefix}{TIMES[network]}"
        drawn.add(name, f"{network}, time per step", breakdown(network, rows.get(network, ())))
    for network in reversed(NETWORKS):
        name, groups = f"{prefix}{ENTRIES[network]}", by_network.get(network, ())
        drawn.add(name, f"{network}, accuracy by k and by columns", sweeps(network, groups))
    return drawn


def convergence(network: str, groups: Sequence[Sequence[MethodRuns]]) -> Figure | str:
    """Fig. 2 and 3: accuracy and training loss by epochs, with the epochs of the paper's convergence.

    groups  methods of trainings of this network, by their setting; without any, the reason why nothing is drawn
    """
    chosen = [[method for method in methods if method.label in COMPARED] for methods in groups]
    chosen = [those for those in chosen if any(method.label.startswith("gs_sgd") for method in those)]
    panels = [made for those in chosen for made in (_panel(those, TOP1), _panel(those, LOSS)) if made]
    if not panels:
        return "no training of the network with gs_sgd"
    number = CONVERGENCE[network].removeprefix("fig").removesuffix(".svg")
    note = "\n".join([*map(course.setting, chosen), _papers_epochs(chosen)])
    return grid(panels, f"gs-SGD, Fig. {number}: convergence of {network}", note, 2, BROAD)


def _panel(methods: Sequence[MethodRuns], measure: CurveMeasure) -> Panel | None:
    marks = [
        course.at_epoch(f"the paper's {claim.about['converges']}: {claim.figure()}", claim.number[0], methods, measure,
                        TONES.get(claim.about["converges"], colours.method(claim.about["converges"])))
        for claim in _stated()
    ]  # fmt: skip
    title = "Accuracy" if measure is TOP1 else "Loss"
    return course.panel(methods, measure, title, [mark for mark in marks if mark], TONES)


def _papers_epochs(groups: Sequence[Sequence[MethodRuns]]) -> str:
    """What the paper prints, and whether runs are long enough for it."""
    words = ", ".join(f"{claim.about['converges']} after {claim.figure()}" for claim in _stated())
    said = f"The paper prints no accuracies. It states that methods converge: {words} of about 140."
    last = max((len(run.record["history"]) for methods in groups for each in methods for run in each.runs), default=0)
    short = last < min(claim.number[0] for claim in _stated())
    return f"{said} Our runs are shorter than that." if short else f"{said} Dotted: these epochs."


def _stated() -> list[Claim]:
    return [claim for claim in PUBLISHED.claims.values() if "converges" in claim.about]


def breakdown(network: str, rows: Sequence[Row]) -> Figure | str:
    """Fig. 4 and 5: computation, sparsification and communication of a step, and images a second beside the paper's.

    Communication is what a step waits for messages: what computation hides is not in it. Without rows of the paper's
    methods that tell their phases: the reason.
    """
    shown = [row for method in METHODS for row in of_method(rows, method) if _parts(row)]
    if not shown:
        return "no run of the paper's methods has the phases of its steps"
    papers = PUBLISHED.tables["images_per_second"][network]
    bars = [_bar(row, papers) for row in shown]
    across = around("time per step, ms", [0.0, *(bar.end for bar in bars)])
    printed = [row.label for row in shown if row.label in AS_PRINTED.values()]
    look = Look(colours.STEP, spread="steps, 10 % to 90 %", legend_columns=1, bold=printed)
    runs = [run for row in shown for run in row.runs]
    where = cluster(shown) if {"hosts", "link"} <= runs[0].note.keys() else network
    number = TIMES[network].removeprefix("fig").removesuffix(".svg")
    note = (
        f"{where}. Bars: medians of {counted((len(row.runs) for row in shown), 'turn')}; lines: 10 % to 90 % of all "
        "steps. Bold: the algorithms as printed, by which claims are judged. The paper's figure has no numbers; beside "
        "bars: images a second, and the paper's of Table II, on GPUs that it does not name. "
        f"{provenance_of(runs)}."
    )
    return finished(stacked(bars, across, look, f"gs-SGD, Fig. {number}: time per step of {network}", note))


def _bar(row: Row, papers: Mapping[str, float]) -> Bar:
    rate = row.median("images_per_second", "median")
    words = "" if rate is None else f"{rate:,.0f} images/s"
    method = next((name for name, label in AS_PRINTED.items() if label == row.label), None)
    if method is not None and method in papers:
        words += f"; the paper's {papers[method]:,}"
    return Bar(row.title, {part: 1e3 * seconds for part, seconds in _parts(row).items()}, row.spread_ms, words=words)


def _parts(row: Row) -> dict[str, float]:
    """Seconds of a step by the paper's three parts; {} for runs that do not tell them."""
    compress, exposed = (row.median("phases", name) for name in ("compress", "exchange_exposed"))
    seconds, computing = row.step_seconds, row.computing
    if compress is None or exposed is None or not seconds or computing is None:
        return {}
    sparsifying = min(compress, exposed)
    rest = max(seconds - computing - sparsifying, 0.0)
    return {COMPUTING: computing, SPARSIFYING: sparsifying, COMMUNICATING: rest}


def sweeps(network: str, groups: Sequence[Sequence[MethodRuns]]) -> Figure | str:
    """Fig. 6 and 7: accuracy by epochs as k, and as the sketch's columns, grow; without two of either, the reason.

    groups  as for `convergence`
    """
    panels, used = [], []
    for methods, what in itertools.product(groups, SWEEPS):
        known = {method.label: method for method in methods if not method.ends}
        those = [(value, known[swept(what, value)]) for value in SWEPT if swept(what, value) in known]
        if len(those) > 1:
            named = [MethodRuns(f"{AS_PRINTED['gs_sgd']} {what}={value:,}", method.runs) for value, method in those]
            panels += [made for measure in (TOP1, LOSS) if (made := _panel(named, measure))]
            used.append(named)
    if not panels:
        return f"needs trainings of gs_sgd literal with {DAMAGING_K:,} and with another k, or number of columns"
    number = ENTRIES[network].removeprefix("fig").removesuffix(".svg")
    note = "\n".join(
        [*map(course.setting, used), f"The paper prints no accuracies; it says that {DAMAGING_K:,} damages them."]
    )
    return grid(panels, f"gs-SGD, Fig. {number}: {network} by k, and by columns", note, 2, BROAD)


def _by_network(trained: Sequence[Sequence[MethodRuns]]) -> dict[str, list[Sequence[MethodRuns]]]:
    """The lists of methods by the paper's name of their network; another network's are left out."""
    found: defaultdict[str, list[Sequence[MethodRuns]]] = defaultdict(list)
    for methods in trained:
        names = {model_of(run.record["config"]["model"]) for method in methods for run in method.runs}
        if len(names) == 1 and (name := names.pop()):
            found[name].append(methods)
    return dict(found)
