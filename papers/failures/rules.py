"""The rules that a file of `wirebench chaos` keeps: the trials that its campaign draws, and numbers that agree."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wirebench.chaos import campaign
from wirebench.chaos.calls import with_loads
from wirebench.chaos.campaign import Campaign
from wirebench.chaos.faults import FAULTS, due_to_name
from wirebench.record.rules import NEAR, Broken, machines

SLACK_SECONDS = 1.0
"""A pause begins with the last step before its trial."""


def faults(lines: Sequence[Mapping[str, Any]]) -> Iterator[Broken]:
    """Rules for the header and the line of each trial; KeyError, TypeError and the like for what is no such file."""
    header, trials = lines[0], lines[1:]
    planned = campaign.of(header)
    yield from _calls(header["calls"], trials, planned.setting.hosts)
    for place, line in enumerate(trials):
        yield from (Broken("numbers", f"trial {place} {how}") for how in _trial(place, line, planned))
    seconds = [line["seconds"] for line in trials]
    if len(set(seconds)) < len(seconds):
        yield Broken("numbers", "two trials took equally long, to the last digit")


def _calls(calls: Sequence[dict[str, Any]], trials: Sequence[Mapping[str, Any]], hosts: int) -> Iterator[Broken]:
    """The calls follow each other, their machine is described, and each has the load of its trials."""
    for call in calls:
        yield from machines(call, hosts)
        _ = [call["environment"][part] for part in ("cpu", "versions", "gpus")], call["environment"]["cpu"]["model"]
    firsts = [call["first"] for call in calls]
    if firsts[:1] != [0] or firsts != sorted(set(firsts)) or firsts[-1] >= len(trials):
        yield Broken("numbers", f"calls begin with trials {', '.join(map(str, firsts))} of {len(trials)}")
        return
    for call, counted in zip(calls, with_loads(calls, trials), strict=True):
        told, known = (each["load"] and each["load"][0]["others_cores"] for each in (call, counted))
        if told != known and not math.isclose(told or 0.0, known or 0.0, rel_tol=NEAR):
            yield Broken("numbers", f"calls[{call['first']}].load says {told}, and its trials {known}")


def _trial(place: int, line: Mapping[str, Any], planned: Campaign) -> Iterator[str]:
    """What is wrong with a trial, in words that follow its number."""
    due = planned.trial(place)
    if (line["number"], line["kind"], line["host"]) != (due.number, due.kind, due.host):
        told = f"{line['kind']} on {line['host']}, and the seed draws {due.kind} on {due.host}"
        yield f"is number {line['number']}, {told}"
        return
    if not 0 <= line["pause_seconds"] <= line["seconds"] + SLACK_SECONDS:
        yield f"pauses {line['pause_seconds']:.4g} of {line['seconds']:.4g} s"
    if line["due_to_name"] != due_to_name(FAULTS[due.kind], planned.setting.hosts):
        yield f"has {line['due_to_name']} hosts that have to name the cause"
    if line["named_by"] > line["due_to_name"]:
        yield f"is named by {line['named_by']} of {line['due_to_name']} hosts"
    if line["started_anew"] and line["lost_residual"] < 1:
        yield f"started anew, and lost {line['lost_residual']:.3g} of all residuals"
