"""The marks of tables and verdicts: which rules of wirebench/record/rules.py the records break that they rest on."""

from collections.abc import Iterable, Mapping, Sequence

from wirebench.record.notes import NotedRun
from wirebench.record.rules import ENOUGH, UNTIMED, broken


def rules(runs: Sequence[NotedRun], repeats: str) -> tuple[str, ...]:
    """The names of the rules that a composition's runs break, with how many turns or seeds there are.

    Whether a commit is known is no matter of the runs, and left out. `repeats` is one of ENOUGH, or "" where a claim is
    about the speed of many compositions, each measured once.
    """
    found = [each.rule for run in runs for each in broken(run.record)]
    if repeats in UNTIMED:
        found = [rule for rule in found if not rule.startswith("load")]
    few = ENOUGH[repeats](runs) if repeats else ()
    return (*dict.fromkeys(found), *dict.fromkeys(f"{each.rule} ({len(runs)})" for each in few))


def is_quiet(run: NotedRun) -> bool:
    """Whether the run keeps the rule of load: its machine did nothing else."""
    return not any(rule.startswith("load") for rule in rules([run], ""))


def rules_of(rows: Iterable[Sequence[NotedRun]], repeats: str) -> tuple[str, ...]:
    """The rules that any of these compositions breaks."""
    return tuple(dict.fromkeys(rule for runs in rows for rule in rules(runs, repeats)))


def note(rows: Mapping[str, Sequence[NotedRun]], repeats: str) -> list[str]:
    """What a table says below itself of the rules that its rows break, by rule; nothing where none is broken."""
    by_rule: dict[str, list[str]] = {}
    for label, runs in rows.items():
        for rule in rules(runs, repeats):
            by_rule.setdefault(rule, []).append(label)
    said = [f"{rule}: {'all rows' if len(rows) == len(those) else ', '.join(those)}" for rule, those in by_rule.items()]
    return [f"Broken rules (docs/studies.md): {'; '.join(said)}.", ""] if said else []
