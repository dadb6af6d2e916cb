"""Other programs that kept a run's machines busy: times, and predictions made of them, are then less exact."""

from collections.abc import Mapping, Sequence
from typing import Any

from wirebench.record.compare import busy_machines


def busy(record: Mapping[str, Any]) -> list[str]:
    """A line for each machine of the record's run that other programs kept busy."""
    return [
        f"This machine was busy: {each['others_cores']:.2g} cores of other work during the run "
        f"({each['hostname']}, {each['cores']} cores)."
        for each in busy_machines(record)
    ]


def busiest(records: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """A line on the short runs beside which a machine was busy; none where no machine was."""
    found = [max(each["others_cores"] for each in machines) for machines in map(busy_machines, records) if machines]
    if not found:
        return ()
    return (
        f"This machine was busy: up to {max(found):.2g} cores of other work in {len(found)} of the {len(records)} "
        "short runs.",
    )
