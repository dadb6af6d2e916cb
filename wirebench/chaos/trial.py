"""One fault, from the wait before it until the job is whole again: what was measured."""

import itertools
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from wirebench.chaos.faults import FAULTS, due_to_name
from wirebench.chaos.job import BATCH_SIZE, COMMIT_STEPS, Job, JobLine, JobStep
from wirebench.telemetry.machines import LoadMeter

POLL_SECONDS = 0.05
SETTLED_STEPS = 2 * COMMIT_STEPS
"""Steps of the whole world after which a trial ends: there is a commit, and what came late would have come."""
QUIET_SECONDS = 12.0
"""A trial whose fault is never noticed ends after this many seconds, longer than any timeout of the job."""
START_SECONDS = 120.0
MOST_REDONE = 3 * COMMIT_STEPS // 2
"""Most steps that a job may repeat after a fault: back to the previous commit, and half as many until it is written."""


class Trial(NamedTuple):
    """What is to be done: fault number `number` of a campaign, `wait_seconds` after the one before, to a host."""

    number: int
    kind: str
    host: str
    wait_seconds: float


def whole(job: Job, since: float, steps: int) -> bool:
    """Whether the job's last `steps` steps all came after `since` and were made by all workers."""
    last = job.steps[-steps:]
    return len(last) == steps and last[0].at > since and all(step.workers == job.setting.hosts for step in last)


def until(job: Job, condition: Callable[[], bool], seconds: float) -> bool:
    """Look after the job until the condition holds; False if it does not hold within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        job.look()
        if condition():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)


def run(job: Job, trial: Trial, limit_seconds: float) -> dict[str, Any] | None:
    """Make the trial; its line, None where the fault could not be delivered. After a hang the job is of no more use.

    limit_seconds  a job that is not whole again by then hangs
    """
    fault, began, first = FAULTS[trial.kind], time.monotonic(), job.steps[-1]
    meter = LoadMeter()
    until(job, lambda: time.monotonic() - began >= trial.wait_seconds, trial.wait_seconds + 1)
    load = meter.load()
    until(job, lambda: job.rank_of(trial.host) is not None, limit_seconds)
    before, said, rank = list(job.steps), len(job.lines), job.rank_of(trial.host)
    injected = time.monotonic()
    undo = fault.deliver(job, trial.host)
    if undo is None:
        return None
    try:
        until(job, lambda: time.monotonic() - injected >= fault.seconds, fault.seconds + 1)
    finally:
        undo()  # also where the campaign is stopped: busy neighbours would outlive it
    replaced = not fault.renews or until(job, lambda: job.rank_of(trial.host) not in (None, rank), limit_seconds)
    since = time.monotonic()

    def over() -> bool:
        noticed = not fault.due or _named(job.lines[said:], trial) or time.monotonic() - since > QUIET_SECONDS
        return bool(noticed) and whole(job, since, SETTLED_STEPS)

    recovered = replaced and until(job, over, limit_seconds)
    calm = [step for step in before if step.at >= began] or before[-COMMIT_STEPS:]
    return {
        **trial._asdict(),
        "hang": not recovered,
        **_naming(job, trial, job.lines[said:], injected),
        **_measured(job, before, job.lines[said:], injected, recovered),
        "seconds": time.monotonic() - began,
        "images": job.steps[-1].images - first.images,
        "calm_images_per_second": _rate(calm),
        "load": load,
    }


def _measured(
    job: Job, before: Sequence[JobStep], lines: Sequence[JobLine], injected: float, recovered: bool
) -> dict[str, Any]:
    """How long the job paused, and what it did again or lost.

    before  the steps until the fault; lines: what was said since
    """
    after = [step for step in job.steps if step.at > injected]
    redone = _redone(before, after)
    anew = redone > MOST_REDONE * BATCH_SIZE * job.setting.hosts
    return {
        "pause_seconds": max(_pauses(before, after)),
        "whole_seconds": _whole_again(after, injected, job.setting.hosts) if recovered else None,
        "images_redone": redone,
        "started_anew": anew,
        "lost_residual": 1.0 if anew else min(1.0, sum(_lost(line.text) for line in lines)),
    }


def _naming(job: Job, trial: Trial, lines: Sequence[JobLine], injected: float) -> dict[str, Any]:
    """How many hosts had to name the cause, how many did, and the seconds until the last of them had."""
    fault, times = FAULTS[trial.kind], sorted(_named(lines, trial).values())
    due = due_to_name(fault, job.setting.hosts)
    seconds = times[due - 1] - injected if due and len(times) >= due else None
    return {"due_to_name": due, "named_by": min(len(times), due), "name_seconds": seconds}


def _named(lines: Sequence[JobLine], trial: Trial) -> dict[str, float]:
    """When each host first named the cause, of those that have to."""
    fault, first = FAULTS[trial.kind], dict[str, float]()
    for line in lines:
        if (fault.who != "others" or line.host != trial.host) and fault.names(line.text, trial.host):
            first.setdefault(line.host, line.at)
    return first


def _pauses(before: Sequence[JobStep], after: Sequence[JobStep]) -> list[float]:
    """Seconds between steps that brought the job further than it had been, the last one before the fault included.

    A job that has not come further by the end pauses until then.
    """
    best, last, pauses = before[-1].images, before[-1].at, [0.0]
    for step in after:
        if step.images > best:
            pauses.append(step.at - last)
            best, last = step.images, step.at
    return [*pauses, *(after[-1].at - last for _ in after[:1])]


def _whole_again(after: Sequence[JobStep], injected: float, hosts: int) -> float:
    """Seconds until the step after which there was no long break any more and all workers were there."""
    began = after[0].at if after else injected
    for one, two in itertools.pairwise(after):
        if two.at - one.at > 1.0 or one.workers != hosts:
            began = two.at
    return began - injected


def _redone(before: Sequence[JobStep], after: Sequence[JobStep]) -> int:
    """Images that were trained on again after the fault."""
    redone, best = 0, before[-1].images
    for step in after:
        redone = max(redone, best - step.images)
        best = max(best, step.images)
    return redone


def _lost(line: str) -> float:
    """Share of all residuals that a restart lost, from rank 0's line; 1.0 if the line gives no share."""
    found = re.search(r"lost with (?:rank [\d, ]+|all ranks): (?:(\S+)% of all residuals|how much is not)", line)
    if found is None:
        return 0.0
    return 1.0 if found[1] is None else float(found[1]) / 100


def _rate(steps: Sequence[JobStep]) -> float | None:
    """Images per second; None with fewer than two steps, or if the job went back to a commit meanwhile."""
    if len(steps) < 2 or any(two.images < one.images for one, two in itertools.pairwise(steps)):
        return None
    return (steps[-1].images - steps[0].images) / (steps[-1].at - steps[0].at)
