"""Runs of a cluster, found anywhere below a folder: which may stand in one table, and which are left out of it."""

import sys
from collections import defaultdict
from collections.abc import Sequence

from papers.rows import MAY_DIFFER, flat
from wirebench.errors import UserError
from wirebench.record.notes import NotedRun

OF_NO_MATTER = (
    *MAY_DIFFER, "name", "asked.", "expected.", "data.root", "data.workers", "engine.", "train.resume", "train.keep",
    "train.checkpoint_every_epochs",
)  # fmt: skip
"""Begins of keys in which the runs of a table differ by their method, or that say how a run was made."""
Setting = dict[str, object]


def alike(runs: Sequence[NotedRun], worlds: bool = False) -> list[NotedRun]:
    """The runs of the most common setting, of runs that would be compared; runs of other settings are named on stderr.

    worlds  whether they may differ in their numbers of workers and machines
    """
    groups: defaultdict[str, list[NotedRun]] = defaultdict(list)
    for run in runs:
        groups[repr(sorted(_setting(run, worlds).items()))].append(run)
    if not groups:
        return []
    most = max(groups.values(), key=len)
    for group in groups.values():
        if group is not most:
            differs = _difference(_setting(most[0], worlds), _setting(group[0], worlds))
            print(
                f"left out, of another setting: {len(group)} runs such as {group[0].folder}: {differs}", file=sys.stderr
            )
    return most


def machines(run: NotedRun) -> int:
    """On how many machines it ran: hosts that one machine plays are one."""
    return len(run.has("load") or ())


def refuse_twice(label: str, runs: Sequence[NotedRun]) -> None:
    """UserError where two runs of a row are of the same seed, or of the same turn by their folders' names.

    The seed is that of the note, which has to be the record's, or that of a whole training.
    """
    seen: dict[object, NotedRun] = {}
    for run in runs:
        known = run.has("config", "train", "seed")
        seed = run.note.get("seed", known if run.is_whole else None)
        if seed is not None and known not in (seed, None):
            raise UserError(f"{run.folder}: its note says seed {seed}, its record {known}")
        key = run.turn if seed is None else seed
        if key in seen:
            what = "turn" if seed is None else "seed"
            raise UserError(f"{label}: {seen[key].folder} and {run.folder} are both {what} {key}; name a folder of one")
        seen[key] = run


def _setting(run: NotedRun, worlds: bool) -> Setting:
    config = {key: value for key, value in flat(run.record["config"]) if not key.startswith(OF_NO_MATTER)}
    world = {} if worlds else {"workers": run.record["world_size"], "machines": machines(run)}
    return {**config, **world, "engine": run.record["engine"], "link": run.note.get("link")}


def _difference(most: Setting, other: Setting) -> str:
    """The first few settings in which they differ."""
    keys = [key for key in {**most, **other} if most.get(key) != other.get(key)]
    said = [f"{key} is {other.get(key)!r}, not {most.get(key)!r}" for key in keys[:3]]
    return ", ".join(said) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
