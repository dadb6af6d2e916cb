"""What compressors did to the accuracy of small ResNets, and to the loss of the study's GPT: what the package ships."""

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from papers.accuracy import rows
from papers.accuracy.formats import FORMS
from papers.accuracy.modern import DENSE, LARGER, OTHER_DENSE, OWN, QUARTER, SHORTER
from papers.accuracy.rows import MethodRuns, bytes_of, losses
from papers.accuracy.sizes import AT, METHODS, OWN_RATE, SIZED
from papers.accuracy.task import Task
from papers.accuracy.tasks import CLASSICS, GPT, GPT_BY_FORMAT, RESNET
from papers.accuracy.times import dense_runs
from papers.runner import RESULTS
from wirebench import compressors, schedulers
from wirebench.errors import UserError
from wirebench.inspect.reference import DATA, TrainedMethod, accuracies, composition, remarks
from wirebench.planner.accuracy import LOSS, TOP1, Accuracies, Ended, Measure, Model
from wirebench.planner.compositions import DENSE as NONE
from wirebench.planner.dense import DenseRuns
from wirebench.record.notes import NotedRun
from wirebench.utils.parsing import value_of

QUICK, RESNET20 = (RESULTS / "convergence" / name for name in ("quick", "resnet20"))
_NEAREST = {f"{form}{feedback}" for form in FORMS for feedback in ("", " feedback")}
ALIKE = 0.1
"""Percent of a loss. Of dense training at 0.1 million parameters two seeds lie 1 % apart."""
WITH_DENSITY = ("density", "warmup")
"""What is no option of a method's own: the planner tells the density apart, and a warm-up of all that have one."""


class Source(NamedTuple):
    """A row of a study, and what it trained, in the planner's words.

    schedule  with local steps; "": an exchange in every step
    options   of the compressor, that are not its defaults
    """

    label: str
    compressor: str
    schedule: str = ""
    options: str = ""


def of_classics(folder: Path = QUICK) -> Accuracies:
    """A task of every compressor; empty where nothing was measured or a record is damaged."""
    methods = _methods(folder)
    if isinstance(methods, str):
        return Accuracies(methods, {})
    dense = methods[DENSE].top1 if DENSE in methods else []
    if not dense:
        return Accuracies("", {})
    # A label with options is a variant.
    plain = [Source(label, label) for label in methods if " " not in label and label != DENSE]
    known, _ = _found(methods, [Source(DENSE, NONE), *plain], dense, TOP1)
    return Accuracies(_of_density(list(methods.values())), known)


def images(folder: Path = RESULTS / RESNET.folder, larger: Path = RESNET20) -> tuple[Accuracies, Accuracies]:
    """The network with most methods, and the larger one; a damaged record leaves its task out.

    What the first lacks comes from the methods of today on the same network, beside their own dense runs.
    """
    known, methods = of_classics(), _methods(folder, OWN)
    if isinstance(methods, str):
        return replace(known, setting=f"{known.setting}; {folder}: {methods}"), of_classics(larger)
    dense = methods[DENSE].top1 if DENSE in methods else []
    if not dense or not known.known:
        return known, of_classics(larger)
    more, local = _found(methods, sources(RESNET), dense, TOP1)
    seeds = max(len(method.runs) for method in methods.values())
    later = ", ".join(sorted(more.keys() - known.known.keys()))
    where = f"{later} and local steps: up to {seeds} seeds, updates with SGD at rates of their own"
    setting = f"{known.setting}; {where}"
    return replace(known, setting=setting, known=more | {**known.known}, local=local), of_classics(larger)


def language() -> Accuracies:
    """The largest GPT that was trained with all methods on 20 tokens a parameter, at rates that were searched.

    What it lacks with an exchange in every step comes from the study's GPT, which had fewer tokens, beside its own
    dense runs. Empty where nothing was measured or a record is damaged.
    """
    today = of_task(GPT)
    for task in reversed([task for task in SIZED if task.name.endswith(f"_{AT}")]):
        sized = of_task(task, needs={*METHODS, QUARTER})
        if sized.known:
            later = ", ".join(sorted(today.known.keys() - sized.known.keys()))
            setting = f"{sized.setting}; {later}: {today.setting}" if later else sized.setting
            return replace(sized, setting=setting, known={**today.known, **of_formats(), **sized.known})
    return today


def of_formats(tasks: Sequence[Task] = GPT_BY_FORMAT, results: Path = RESULTS) -> dict[str, Ended]:
    """Sums in one hop whose format no other one beats in both bytes and loss, by the compressor with its options.

    It was trained on every number of workers. The one counts on which its worst seed lost most; its bytes are the first
    one's, whose messages are the longest. Formats that lose at most `ALIKE` are alike: of these the one with
    the fewest bytes counts. All round to nearest.
    """
    found: dict[str, list[tuple[float, Ended]]] = defaultdict(list)
    for task in tasks:
        methods = _methods(results / task.folder)
        if isinstance(methods, str) or not (dense := losses(methods.get(DENSE))):
            continue
        for label in _NEAREST & methods.keys():
            if (ended := _ended(methods[label], dense, LOSS, Source(label, ""))) is not None:
                given = _of(dict(word.split("=", 1) for word in task.settings[label]), "compressor")
                name = ":".join([given.pop("name"), *(f"{key}={value}" for key, value in given.items())])
                count = bytes_of(methods[label]) or math.inf
                found[compressors.PLUGINS.words_of(name)].append((count, ended))
    everywhere = {name: those for name, those in found.items() if len(those) == max(map(len, found.values()))}
    worst = {name: max((each for _, each in those), key=lambda each: each.lost) for name, those in everywhere.items()}
    kept: dict[str, Ended] = {}
    least = math.inf
    for name in sorted(worst, key=lambda each: (found[each][0][0], worst[each].lost)):
        lost = max(worst[name].lost, ALIKE)
        if lost < least:
            kept[name], least = worst[name], lost
    return {name: ended for name, ended in kept.items() if ":" in name}


def of_task(task: Task, folder: Path | None = None, needs: Collection[str] = ()) -> Accuracies:
    """What a task of language models says, of its own folder or of another one; empty where a method that it `needs`
    has no run.
    """
    methods = _methods(folder or RESULTS / task.folder, OWN)
    if isinstance(methods, str):
        return Accuracies(methods, {}, measure=LOSS)
    dense = losses(methods[DENSE]) if DENSE in methods else []
    if not dense or not methods.keys() >= {*needs}:
        return Accuracies("", {}, measure=LOSS)
    known, local = _found(methods, sources(task), dense, LOSS)
    # What loses more is no better than dense training that ends after a quarter of the tokens, and compresses nothing.
    quarter = losses(methods[QUARTER]) if QUARTER in methods else []
    too_much = 100 * (statistics.mean(quarter) / statistics.mean(dense) - 1) if quarter else math.inf
    return Accuracies(_of_steps(methods), known, local, LOSS, too_much, _dense_in(methods))


def _methods(folder: Path, own: Sequence[str] = ()) -> dict[str, MethodRuns] | str:
    """A task's methods by their labels, or why there are none: the planner is of use without."""
    try:
        return {method.label: method for method in rows.load(folder, own)}
    except UserError as error:
        return f"nothing, {error}"


def _found(
    methods: Mapping[str, MethodRuns], rows_of: Iterable[Source], dense: Sequence[float], measure: Measure
) -> tuple[dict[str, Ended], dict[str, list[Ended]]]:
    """By compressor, how it ended with an exchange in every step, and after local steps."""
    known: dict[str, Ended] = {}
    local: defaultdict[str, list[Ended]] = defaultdict(list)
    for source in (each for each in rows_of if each.label in methods):
        ended = _ended(methods[source.label], dense, measure, source)
        if ended is None:
            continue
        if source.schedule:
            local[source.compressor].append(ended)
        else:
            known[source.compressor] = ended
    return known, dict(local)


def _ended(method: MethodRuns, dense: Sequence[float], measure: Measure, source: Source) -> Ended | None:
    """Points of these seeds above the mean of the dense seeds, or percent below their loss; one that diverged is
    enough. None where no run came to its end, nor diverged.
    """
    usual, run = statistics.mean(dense), method.runs[0]
    density, about = run.has("config", "compressor", "density"), (source.schedule, source.options)
    if measure is TOP1 and any(each.diverged for each in method.runs):
        return Ended(None, density, None, measure, *about, model=model_of(run))
    if measure is TOP1:
        gains, worst = [100 * (each - usual) for each in method.top1], 100 * (min(dense) - usual)
        if not gains:
            return None
        mean: float | None = 100 * (statistics.mean(method.top1) - usual)
    else:
        gains, worst = [100 * (1 - each / usual) for each in losses(method)], 100 * (1 - max(dense) / usual)
        mean = statistics.mean(gains) if gains else None
    several = (min(gains), max(gains)) if len(gains) > 1 else None
    return Ended(mean, density, several, measure, *about, worst, model_of(run))


def model_of(run: NotedRun) -> Model:
    """What a run trained: of a language model also how many tokens it had for each parameter."""
    parameters, name = run.record["parameters"], run.has("config", "model", "name")
    size, samples = f"{parameters / 1e6:.2g}M parameters", run.has("samples") or {}
    if tokens := samples.get("tokens"):
        seen = samples["train"] * tokens * (run.has("config", "train", "epochs") or 1) / parameters
        return Model(f"a {name.upper()} of {size}, {seen:.1f} tokens a parameter", parameters)
    depth = run.has("config", "model", "depth")
    return Model(f"{name}{f' depth={depth}' if depth else ''} of {size}", parameters)


def _dense_in(methods: Mapping[str, MethodRuns]) -> tuple[DenseRuns, ...]:
    """All forms of the study's dense training; () without those on fewer tokens."""
    forms = [methods[label] for label in (DENSE, *SHORTER, *LARGER) if label in methods and losses(methods[label])]
    return tuple(map(dense_runs, forms)) if any(each.label in SHORTER for each in forms) else ()


def _of_density(methods: Sequence[MethodRuns]) -> str:
    settings = rows.shared(methods)
    depth = f" depth={settings['depth']}" if "depth" in settings else ""
    density = f", density {settings['density']} after a warm-up" if "density" in settings else ""
    trained = f"{settings.get('model')}{depth}, {settings.get('epochs')} epochs of {settings.get('data')}"
    return f"{trained}, {settings['workers']} workers{density}; {_many(methods, 'a point means little')}"


def _of_steps(methods: Mapping[str, MethodRuns]) -> str:
    settings, steps = rows.shared([methods[DENSE]]), methods[DENSE].runs[0].record["steps_done"]
    trained = f"gpt depth={settings['depth']} width={settings['width']}, {steps} steps of {settings['data']}"
    many = _many(list(methods.values()), "a small difference means little")
    return f"{trained}, {settings['workers']} workers, AdamW or the method's own optimizer; {many}"


def _many(methods: Sequence[MethodRuns], one: str) -> str:
    seeds = max(len(method.runs) for method in methods)
    return f"one seed, so that {one}" if seeds == 1 else f"up to {seeds} seeds"


def sources(task: Task) -> list[Source]:
    """For each compressor its first row in every step, and all rows after local steps with its default options.

    Of a schedule that has a row at a rate of its own, that one. Rows with another optimizer than the task's or the
    method's own, and other forms of dense training, are left out.
    """
    found: dict[tuple[str, str], Source] = {}
    for each in _rows(task):
        key = each.compressor, each.schedule
        if not (each.schedule and each.options) and (key not in found or (each.schedule and OWN_RATE in each.label)):
            found[key] = each
    return list(found.values())


def _rows(task: Task) -> Iterator[Source]:
    for label, words in task.settings.items():
        given = dict(word.split("=", 1) for word in words)
        if label in OTHER_DENSE or given.get("optimizer.name", "sgd") != "sgd":
            continue
        name, schedule = given.pop("compressor.name"), _of(given, "scheduler")
        options, usual = _of(given, "compressor"), compressors.PLUGINS.defaults(name)
        other = [
            f"{key}={text}" for key, text in options.items() if key not in WITH_DENSITY and value_of(text) != usual[key]
        ]
        text = ":".join(f"{key}={value}" for key, value in schedule.items() if key != "name")
        local = schedulers.PLUGINS.words_of(f"outer:{text}".rstrip(":")) if schedule.get("name") == "outer" else ""
        yield Source(label, name, local, " ".join(other))


def _of(given: Mapping[str, str], section: str) -> dict[str, str]:
    return {key.partition(".")[2]: value for key, value in given.items() if key.startswith(f"{section}.")}


REFERENCES = RESULTS / "convergence"


def references(results: Path = REFERENCES) -> list[TrainedMethod]:
    """Every method of every task; UserError for a run that cannot be read."""
    folders = {task.name: results / task.name for task in CLASSICS}
    return [
        TrainedMethod(
            name, method.label, composition(method.runs[0].record), not method.ends,
            [found for run in method.runs if (found := accuracies(rows.history(run)))],
        )
        for name, folder in folders.items()
        if folder.is_dir()
        for method in rows.load(folder)
    ]  # fmt: skip


def flagged(runs: Iterable[NotedRun], results: Path = REFERENCES) -> list[tuple[Path, str]]:
    """Paths of runs, each with a line for each figure in which its run is not as its references.

    A run that is a reference itself is compared with the others. UserError for a reference that cannot be read.
    """
    trained = [run for run in runs if run.has("config", "data", "name") == DATA]
    known = references(results) if trained else []
    return [(run.folder, said) for run in trained for said in remarks(run.record, known)]
