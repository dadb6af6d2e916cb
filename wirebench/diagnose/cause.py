"""What a rule finds, and the changes that would help."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Change(NamedTuple):
    """A change of a run.

    what        in words; if a setting makes the change, the setting
    gain        seconds of a step that it may save, estimated from the record
    settings    overrides for train.py that make the change; variables: the ranks' environment variables that do. Both
                are empty if no setting makes it
    wire_bytes  bytes that a rank sends in a step with it; None if the change does not concern bytes
    accuracy    its measured effect on accuracy, in words; "" if it has none
    costs       it measurably costs accuracy
    """

    what: str
    gain: float
    settings: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}
    wire_bytes: float | None = None
    accuracy: str = ""
    costs: bool = False

    @property
    def can_be_tried(self) -> bool:
        """Whether a run of other settings makes the change."""
        return bool(self.settings or self.variables)


class Cause(NamedTuple):
    """What is wrong.

    name      of the rule
    sentence  what it is and what it costs; evidence: the numbers behind it
    changes   what would help, each by itself; at least one
    remarks   lines to print below the changes
    """

    name: str
    sentence: str
    evidence: str
    changes: tuple[Change, ...]
    remarks: tuple[str, ...] = ()

    @property
    def gain(self) -> float:
        """Seconds of a step that its best change may save; one that costs accuracy counts where there is no other."""
        return best_first(self.changes)[0].gain


def best_first(changes: Iterable[Change]) -> list[Change]:
    """The changes by the seconds they save; those that cost accuracy follow all others."""
    return sorted(changes, key=lambda each: (each.costs, -each.gain))
