"""The rules that a record has to keep before a table rests on it: docs/studies.md lists them, this file asks them.

They are modelled on the rules of trusted benchmarks: MLPerf's training rules (a seed a run, none used twice),
modded-nanogpt's and AlgoPerf's (enough runs for a test). `broken` asks one record, `ENOUGH` the runs of a composition,
`copies` all runs. `wirebench submit` shows which rules foreign records break; `wirebench study check` names the
committed records that break one, unless results/exceptions.toml lists them with a reason.
"""

import datetime
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.record import edition, schema
from wirebench.record.compare import BUSY
from wirebench.record.notes import NotedRun

TURNS = 5
"""Least turns of a claim about speed."""
SEEDS = 3
"""Least seeds of a claim about accuracy."""
STEAL = 0.02
"""Share of the processors' time that the hypervisor may give to others."""
NEAR = 1e-3
"""Share by which numbers of a record that follow from each other may differ: they are medians and means of steps."""


DAMAGED = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What reading a file raises that has other keys and values than its writer's."""
Knows = Callable[[str], bool]
"""Whether a commit is in the history."""


class Broken(NamedTuple):
    """A rule that a record breaks: its name, how, and of the rule "load" which share of a machine was not the run's."""

    rule: str
    how: str
    share: float = 0.0


def broken(record: Mapping[str, Any], knows: Knows | None = None) -> list[Broken]:
    """The rules that a record breaks by itself.

    knows  whether the repository has the commit; None: it is not asked
    """
    try:
        mistakes = [Broken("schema", problem) for problem in schema.problems(record)]
        return mistakes or [
            *_commit(record, knows), *_began(record), *machines(record, record["world_size"]), *_load(record),
            *_seed(record), *_numbers(record), *_edition(record),
        ]  # fmt: skip
    except DAMAGED as error:
        return [Broken("schema", f"is no record of a run: {error!r}")]


def broken_header(header: Mapping[str, Any], knows: Knows | None) -> list[Broken]:
    """The rules that the header of a benchmark's file breaks, of what it says of its commit and its machines' load."""
    return [*_commit(header, knows), *_load(header)]


def _commit(record: Mapping[str, Any], knows: Knows | None) -> Iterator[Broken]:
    git = record["environment"].get("git")
    if git is None:
        yield Broken("commit", "none: it was not made in a checkout")
    elif not isinstance(git["commit"], str):
        yield Broken("commit", f"{git['commit']!r} is none")
    elif git["dirty"]:
        yield Broken("commit", f"{git['commit'][:10]} with changes")
    elif knows is not None and not knows(git["commit"]):
        yield Broken("commit", f"{git['commit'][:10]} is not in this repository's history")


def _began(record: Mapping[str, Any]) -> Iterator[Broken]:
    """When the run began is known, by which it is distinguished from others."""
    if moment(record["environment"].get("utc")) is None:
        yield Broken("schema", "environment.utc does not say when the run began")


def moment(utc: Any) -> datetime.datetime | None:
    """The time that a record says, however it is written; None where that is none of a time zone."""
    try:
        found = datetime.datetime.fromisoformat(utc)
    except (TypeError, ValueError):
        return None
    return None if found.tzinfo is None else found


def machines(record: Mapping[str, Any], size: int) -> Iterator[Broken]:
    """Every one of `size` ranks says on which machine it was."""
    hosts = record["environment"].get("hosts")
    if hosts is None:
        yield Broken("machines unknown", "only rank 0's is described")
        return
    ranks = sorted(rank for host in hosts for rank in host["ranks"])
    if ranks != list(range(size)):
        yield Broken("machines", f"described are those of ranks {ranks}, of {size}")


def _load(record: Mapping[str, Any]) -> Iterator[Broken]:
    """Every machine had little else to do."""
    machines = record.get("load")
    if not machines:
        yield Broken("load unknown", "the record does not say how busy the machines were")
    for machine in machines or ():
        where = f"of {machine['hostname']}'s {machine['cores']} cores"
        others, steal = machine["others_cores"] / machine["cores"], machine["steal"] or 0
        if others > BUSY:
            yield Broken("load", f"{machine['others_cores']:.2f} {where} were busy with something else", others)
        if steal > STEAL:
            yield Broken("load", f"the hypervisor took {100 * steal:.1f} % {where}", steal)


def _seed(record: Mapping[str, Any]) -> Iterator[Broken]:
    """The run can be made again, and told from those with other seeds."""
    if record["config"].get("train", {}).get("seed") is None:
        yield Broken("seeds", "the run does not say its seed")


def _edition(record: Mapping[str, Any]) -> Iterator[Broken]:
    """A run that names an edition has what is frozen there."""
    try:
        task = edition.named(record)
    except KeyError:
        yield Broken("edition", f"{record['edition']} is no task of an edition")
        return
    if task is not None:
        yield from (Broken("edition", how) for how in task.differences(record))


def _numbers(record: Mapping[str, Any]) -> Iterator[Broken]:
    """Numbers that follow from each other agree."""
    for name in ("step_seconds", "images_per_second"):
        low, middle, high = (record[name][key] for key in ("p10", "median", "p90"))
        if None not in (low, middle, high) and not low <= middle <= high:
            yield Broken("numbers", f"{name}.median, {middle:g}, is not between p10 and p90, {low:g} and {high:g}")
    history = record["history"]
    top1 = record["final"]["top1"]
    if history and record["status"] == "finished" and history[-1]["top1"] != top1:
        yield Broken("numbers", f"final.top1, {top1}, is not the last epoch's, {history[-1]['top1']}")
    yield from _rates(record)
    yield from _counted(record)
    yield from _ratio(record)
    yield from _prediction(record)


def _rates(record: Mapping[str, Any]) -> Iterator[Broken]:
    """All workers' images of a step over its seconds are the rate."""
    config, seconds = record["config"], record["step_seconds"]["median"]
    batch, rate = config.get("data", {}).get("batch_size"), record["images_per_second"]["median"]
    if not seconds or not rate or not batch:
        return
    images = record["world_size"] * batch
    if not math.isclose(rate * seconds, images, rel_tol=0.01):
        yield Broken("numbers", f"images_per_second.median x step_seconds.median is {rate * seconds:.4g}, not {images}")


def _counted(record: Mapping[str, Any]) -> Iterator[Broken]:
    """A worker's payload of a step is computed over the counted steps, not over a few readings."""
    payload, ratio = record["bytes_per_step"].get("payload"), record["compression_ratio"].get("with_indices")
    dense = record["bytes_per_step"]["dense"]
    if payload and ratio and dense and not math.isclose(ratio, dense / payload, rel_tol=NEAR):
        said = f"compression_ratio.with_indices is {ratio:.4g}, and the bytes of the counted steps say"
        yield Broken("steps", f"{said} {dense / payload:.4g}")


def _ratio(record: Mapping[str, Any]) -> Iterator[Broken]:
    """The ratio is the bytes of a dense ring over the bytes that were sent, of the mean worker."""
    sizes, workers = record["bytes_per_step"], record["world_size"]
    sent, ratio = sizes.get("wire_mean"), record["compression_ratio"]["wire"]
    if not sent or not ratio or not sizes["dense"]:
        return
    expected = 2 * (workers - 1) / workers * sizes["dense"] / sent
    if not math.isclose(ratio, expected, rel_tol=NEAR):
        yield Broken("numbers", f"compression_ratio.wire is {ratio:.4g}, and the bytes say {expected:.4g}")


def _prediction(record: Mapping[str, Any]) -> Iterator[Broken]:
    """The error compares the predicted step with the measured one."""
    told = record.get("prediction")
    if not told:
        return
    expected = told["step_seconds"] / told["measured_seconds"] - 1
    if not math.isclose(told["error"], expected, abs_tol=NEAR):
        yield Broken("numbers", f"prediction.error is {told['error']:.4g}, and the steps say {expected:.4g}")


def turns(runs: Sequence[NotedRun]) -> Iterator[Broken]:
    """The rules that the turns of a composition break, of a claim about speed."""
    numbers = sorted(int(turn) for run in runs if (turn := run.turn).isdigit())
    if numbers != list(range(len(runs))):
        yield Broken("turns", f"are numbered {', '.join(map(str, numbers))}")
    if len(runs) < TURNS:
        yield Broken("turns", f"{len(runs)}, and a claim about speed needs {TURNS}")


def seeds(runs: Sequence[NotedRun]) -> Iterator[Broken]:
    """The rules that the seeds of a composition break, of a claim about accuracy."""
    used = [seed for run in runs if (seed := run.has("config", "train", "seed")) is not None]
    twice = sorted({str(seed) for seed in used if used.count(seed) > 1})
    if twice:
        yield Broken("seeds", f"{', '.join(twice)} used twice")
    if len(set(used)) < SEEDS:
        yield Broken("seeds", f"{len(set(used))}, and a claim about accuracy needs {SEEDS}")


def once(runs: Sequence[NotedRun]) -> Iterator[Broken]:
    """The rules that several runs of a composition break, of a claim about counts: one run counts them."""
    yield from ()


ENOUGH: Mapping[str, Callable[[Sequence[NotedRun]], Iterator[Broken]]] = {
    "turns": turns, "seeds": seeds, "timed seeds": seeds, "counts": once,
}  # fmt: skip
"""Rules by what a claim needs several of; counts of bytes need one run, and timed seeds are of a time to a loss."""
UNTIMED = ("seeds", "counts")
"""Claims about these do not depend on what else the machine did: the rules of its load do not count."""


def copies(records: Iterable[tuple[Path, Mapping[str, Any]]]) -> Iterator[tuple[Path, Broken]]:
    """Runs that are another run's copy: no two take the same time, to the last digit, whatever else they say."""
    first: dict[Any, tuple[int, Path]] = {}
    for place, (path, record) in enumerate(records):
        found = {first.setdefault(mark, (place, path)) for mark in times(record)}
        yield from ((path, Broken("turns", f"is a copy of {other}")) for at, other in sorted(found) if at != place)


def times(record: Mapping[str, Any]) -> list[Any]:
    """What a clock measured of a run, each of which no other run has."""
    steps = record.get("step_seconds", {})
    measured = [("seconds_total", record.get("seconds_total")), ("step_seconds", steps.get("p10"), steps.get("p90"))]
    return [mark for mark in measured if None not in mark]
