"""The cost of a change of an elastic run's world: an entry of the record's `worlds`, and a line for the user."""

from collections.abc import Mapping, Sequence
from typing import Any

from wirebench.training.elastic.host_memory import Commit

Trouble = Mapping[str, float]
"""A host's note of a failure: its time (`at`), and the `step` of a world of `size` ranks; empty without a note."""


def from_memory(
    commit: Commit, lost: list[int], size: int, about: Mapping[str, Any], trouble: Sequence[Trouble]
) -> dict[str, Any]:
    """The change of a run whose `size` ranks resume from a commit that lacks the parts of the ranks `lost`.

    about  the commit's state.json
    """
    # A host that was away for a while remembers the trouble after which it left.
    noted = [each for each in trouble if each and each["at"] >= about["at"]]
    steps = [int(each["step"]) for each in noted if each["size"] == commit.size]
    return {
        "step": commit.step,
        "workers_before": commit.size,
        "workers": size,
        "steps_lost": max(max(steps, default=0) - commit.step, 0),
        "lost_ranks": lost,
        "lost_residual": lost_share(about["masses"], lost),
        "began": min((each["at"] for each in noted), default=about["at"]),
    }


def from_nothing(step: int, size: int, trouble: Sequence[Trouble], restored: bool) -> dict[str, Any]:
    """The change of a run that was started anew and found no commit to resume from.

    step      its first step
    restored  it resumes from a checkpoint, and has the checkpoint's residuals
    """
    noted = [each for each in trouble if each]
    last = max(noted, key=lambda each: each["at"], default={"step": float(step), "size": float(size)})
    before = int(last["size"])
    change = {
        "step": step,
        "workers_before": before,
        "workers": size,
        # A checkpoint that another world resumes is counted in this one's steps.
        "steps_lost": max(int(last["step"]) - step, 0),
        "lost_ranks": [] if restored else list(range(before)),
        "lost_residual": 0.0 if restored else 1.0,
    }
    return change | ({"began": min(each["at"] for each in noted)} if noted else {})


def lost_share(masses: Sequence[float | None], lost: Sequence[int]) -> float | None:
    """Share of what all ranks remember that was with the ranks `lost`; None where that cannot be measured."""
    known = [mass for mass in masses if mass is not None]
    if not lost:
        return 0.0
    if len(known) < len(masses):
        return None
    return sum(known[rank] for rank in lost) / sum(known) if any(known) else 0.0


def in_words(change: Mapping[str, Any], restored: bool | None = None) -> str:
    """The change in a line; `restored` is given if the run continues without a commit."""
    world = f"after {change['step']} steps, {change['workers_before']} workers before, {change['workers']} now"
    if restored is not None:
        begins = "going on from a checkpoint" if restored else "beginning anew"
        lost = "the steps since it are done again" if restored else "lost with all ranks: 100% of all residuals"
        why = "no host's memory has a whole commit of this job"
        return f"warning: {begins} {world}: {why}; {lost}"
    lost = "no residual is lost"
    if change["lost_ranks"]:
        lost = f"lost with rank {', '.join(map(str, change['lost_ranks']))}: {_of_all(change['lost_residual'])}"
    return f"going on from memory {world}; {lost}"


def _of_all(share: float | None) -> str:
    # However little, it is not said to be nothing.
    return "how much is not measurable" if share is None else f"{100 * share:.3g}% of all residuals"
