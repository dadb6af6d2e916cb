"""Many trials of one setting: which fault comes when, a line for each in a file, and going on where an end came."""

import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from wirebench.chaos import trial as trials
from wirebench.chaos.calls import Call, Load, begun, with_loads
from wirebench.chaos.faults import FAULTS
from wirebench.chaos.job import Job, JobSetting, running
from wirebench.chaos.trial import SETTLED_STEPS, START_SECONDS, Trial, until, whole
from wirebench.chaos.trials_file import KIND, VERB, load
from wirebench.errors import UserError
from wirebench.telemetry.machines import LoadMeter
from wirebench.utils import json_lines

LIMIT_SECONDS = 100.0
CALM_SECONDS = 5.0
ATTEMPTS = 3
"""Jobs in a row that may fail to begin, or in which a fault cannot be delivered."""


class Campaign(NamedTuple):
    """What a file of trials is about.

    kinds         of faults, which take turns in an order that the seed draws anew each time
    mtbf_seconds  mean time between faults; a fault waits until the job is whole again after the one before
    """

    setting: JobSetting
    kinds: tuple[str, ...]
    mtbf_seconds: float
    seed: int

    def trial(self, number: int) -> Trial:
        """Fault number `number`: the same in every campaign with these values."""
        turn, place = divmod(number, len(self.kinds))
        order = random.Random(f"{self.seed} {turn}").sample(self.kinds, len(self.kinds))
        rng = random.Random(f"{self.seed} {number} fault")
        host = f"h{rng.randrange(self.setting.hosts)}"
        return Trial(number, order[place], host, rng.expovariate(1 / self.mtbf_seconds))

    def header(self) -> dict[str, Any]:
        """The first line of the file, but for its `calls`."""
        setting = {name: value for name, value in self.setting._asdict().items() if name != "more" or value}
        return {
            "kind": KIND, **setting, "kinds": list(self.kinds), "mtbf_seconds": self.mtbf_seconds, "seed": self.seed,
        }  # fmt: skip

    def done(self, path: Path) -> tuple[list[Call], list[dict[str, Any]]]:
        """The file's calls and trials; UserError where they are another campaign's."""
        if not path.exists():
            return [], []
        header, lines = load(path)
        had = of(header).header()
        for key, value in {**dict.fromkeys(had), **self.header()}.items():
            if had.get(key) != value:
                raise UserError(f"{path}: has trials with {key} {had.get(key)!r}, not {value!r}; name another --out")
        return header["calls"], lines


def of(header: Mapping[str, Any]) -> Campaign:
    """The campaign that a file's header tells."""
    told = {name: header[name] for name in JobSetting._fields if name != "more"}
    setting = JobSetting(**told, more=tuple(header.get("more", ())))
    return Campaign(setting, tuple(header["kinds"]), header["mtbf_seconds"], header["seed"])


def run(campaign: Campaign, path: Path, count: int) -> list[dict[str, Any]]:
    """Make the trials below `count` that the file does not have yet; all its trials."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path.with_suffix(".lock"), timeout=0):
            return _run(campaign, path, count)
    except Timeout as error:
        raise UserError(f"{path}: another `{VERB}` makes these trials now; name another --out") from error


def _run(campaign: Campaign, path: Path, count: int) -> list[dict[str, Any]]:
    before, lines = campaign.done(path)
    missing = [number for number in range(count) if number not in {line["number"] for line in lines}]
    if not missing:
        return lines
    log = _Log(campaign, path, [*before, begun(missing[0], campaign.setting.hosts)], lines)
    failed = undelivered = 0
    while missing:
        with running(path.parent / f"{path.stem}-logs", campaign.setting) as job:
            if not until(job, lambda: whole(job, 0.0, SETTLED_STEPS), START_SECONDS):
                failed += 1
                if failed == ATTEMPTS:
                    raise UserError(f"the job does not begin; {job.folder} has what its launchers said")
                continue
            failed = 0
            log.begin(_calm(job))
            undelivered = 0 if _series(log, job, missing) else undelivered + 1
            if undelivered == ATTEMPTS:
                planned = campaign.trial(missing[0])
                raise UserError(f"trial {planned.number}: {planned.kind} cannot be delivered to {planned.host}")
    return lines


@dataclass
class _Log:
    """The file as it grows: the campaign's calls, the last of which is this one, and its trials."""

    campaign: Campaign
    path: Path
    calls: list[Call]
    lines: list[dict[str, Any]]

    def begin(self, load: Sequence[Load]) -> None:
        """Note what else the machine does while a new job goes undisturbed."""
        last = self.calls[-1]
        self.calls[-1] = {**last, "beginnings": [*last["beginnings"], load]}

    def add(self, line: dict[str, Any]) -> None:
        """Keep a trial."""
        self.lines.append(line)
        self.calls = with_loads(self.calls, self.lines)
        json_lines.save(self.path, {**self.campaign.header(), "calls": self.calls}, self.lines)


def _calm(job: Job) -> Sequence[Load]:
    """The machine's load in some seconds in which nothing happens to the job."""
    meter = LoadMeter()
    until(job, lambda: False, CALM_SECONDS)
    return meter.load()


def _series(log: _Log, job: Job, missing: list[int]) -> int:
    """Trials of one job, until one hangs, a fault cannot be delivered, or all are made; how many were made."""
    last, made = time.monotonic(), 0
    while missing:
        planned = log.campaign.trial(missing[0])
        # What the fault before has taken to recover from is part of the time between the two.
        due = planned._replace(wait_seconds=max(0.0, last + planned.wait_seconds - time.monotonic()))
        last = time.monotonic() + due.wait_seconds
        line = trials.run(job, due, LIMIT_SECONDS)
        if line is None:
            told = f"{due.kind} could not be delivered to {due.host}, and is repeated with a new job"
            print(f"trial {due.number}: {told}", file=sys.stderr, flush=True)
            return made
        log.add(line)
        made += 1
        missing.pop(0)
        print(_shown(line), file=sys.stderr, flush=True)
        if line["hang"]:
            return made
    return made


def _shown(line: dict[str, Any]) -> str:
    named = "" if line["name_seconds"] is None else f", named after {line['name_seconds']:.1f} s"
    named = named or (f", named by {line['named_by']} of {line['due_to_name']}" if line["due_to_name"] else "")
    ended = "STARTED ANEW, " if line["started_anew"] else ""
    ended += "HANGS" if line["hang"] else f"longest pause {line['pause_seconds']:.1f} s"
    return f"trial {line['number']}: {line['kind']} on {line['host']}{named}, {ended}"


def parse_kinds(words: Sequence[str]) -> tuple[str, ...]:
    """The kinds that are named; UserError for one that there is not."""
    unknown = [word for word in words if word not in FAULTS]
    if unknown:
        raise UserError(f"--kinds: no {unknown[0]!r}; there are {', '.join(FAULTS)}")
    return tuple(dict.fromkeys(words))
