"""What a figure says of where its numbers come from: machines and commits of the records behind it."""

from collections.abc import Iterable, Mapping
from typing import Any

COMMIT = 10
"""Characters of a commit."""
MANY = 3
"""More commits than this are counted, not named."""


def provenance(environments: Iterable[Mapping[str, Any]]) -> str:
    """Machines and commits of records' environments, each once."""
    known = list(environments)
    machines = dict.fromkeys(map(_machine, known))
    commits = dict.fromkeys(map(_commit, known))
    if not known:
        return ""
    if len(commits) > MANY:
        return f"{'; '.join(machines)}; {len(commits)} commits (see the table)"
    return f"{'; '.join(machines)}; commit{'s' * (len(commits) > 1)} {', '.join(commits)}"


def computed(git: Mapping[str, Any] | None, *sources: str) -> str:
    """Provenance of simulated numbers: their sources, and the commit that computed them.

    git  of the environment; None if the commit is not known
    """
    return f"Simulated once, as nothing in it is random, from {'; '.join(sources)}; commit {_commit({'git': git})}"


def _machine(environment: Mapping[str, Any]) -> str:
    cpu, gpus = environment.get("cpu") or {}, environment.get("gpus") or []
    cores = cpu.get("cores") or "?"
    processor = f"{cpu.get('model') or 'unknown CPU'}, {cores} core{'s' * (cores != 1)}"
    return ", ".join([processor, *dict.fromkeys(gpus)])


def _commit(environment: Mapping[str, Any]) -> str:
    git = environment.get("git")
    return "unknown" if git is None else git["commit"][:COMMIT] + (" and changes" if git["dirty"] else "")


def counted(counts: Iterable[int], what: str) -> str:
    """How many turns, seeds or repeats there are: `3 turns`, `1 to 3 seeds a method`."""
    low, high = min(all_of := list(counts), default=0), max(all_of, default=0)
    return f"{high} {what}{'s' * (high != 1)}" if low == high else f"{low} to {high} {what}s each"
