"""What is measured of exchanges on emulated hosts: 30 steps that do without one, and one that lies beside five steps.

Eight workers share the machine's cores, so everything is slowed down, links and trace alike: what the workers
themselves compute (gradients, updates, top-k) is then small beside what the trace and the links take. Counted steps
are whole rounds, and follow one round or, of dense training, one step.

SparseLoCo  links of 25 Mbit/s, four times slower than life (100 Mbit/s). A dense step takes 27 s, a run 2 minutes.
            At the start weights need longer than the minute after which an engine usually gives up.
streaming   links of 200 Mbit/s, five times slower than life (1 Gbit/s), and batches of 64: five local steps take 3.4 s,
            a fragment's all-reduce up to 1.5 s. Without a delay a worker waits for each: that is what can be hidden.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from papers.accuracy.modern import DENSE, SPARSE, STREAMING
from papers.claim import Claim
from papers.published import load
from papers.trainings import Cluster, Training
from wirebench.errors import UserError
from wirebench.record.rules import TURNS

SPEED = "speed"
CONFIG = Path("configs/tables/today_speed.toml")
HOSTS = 8
SPARSELOCO, STREAMED, WAITING = "sparseloco", "streaming_diloco", "streaming_diloco delay=0"


class Setting(NamedTuple):
    """The rate of every host's link, how much slower than life everything is, and the batch."""

    link: str
    dilation: int
    batch: int

    @property
    def words(self) -> tuple[str, ...]:
        """Overrides."""
        return f"network.dilation={self.dilation}", f"data.batch_size={self.batch}"


class Measured(NamedTuple):
    """A composition: where, with which overrides, how many steps are counted after how many others."""

    setting: Setting
    overrides: tuple[str, ...]
    warmup: int
    counted: int

    @property
    def words(self) -> tuple[str, ...]:
        """All overrides. The trace is drawn until a fragment was sent and applied, 15 steps after the warm-up."""
        steps = (f"train.warmup_steps={self.warmup}", f"train.max_steps={self.warmup + self.counted}")
        return (*self.overrides, *self.setting.words, *steps, "output.trace_steps=15")


_SLOW, _HIDING = Setting("25mbit", 4, 32), Setting("200mbit", 5, 64)
_STREAMING = ("compressor.name=none", *STREAMING)
MEASURED = {
    DENSE: Measured(_SLOW, ("compressor.name=none",), 1, 3),
    SPARSELOCO: Measured(_SLOW, SPARSE, 30, 60),
    STREAMED: Measured(_HIDING, _STREAMING, 30, 30),
    WAITING: Measured(_HIDING, (*_STREAMING, "scheduler.delay=0"), 30, 30),
}
"""By label. Of two values for a key the last one counts: without a delay all else is as with one."""
PAIRS = ((SPARSELOCO, DENSE), (STREAMED, WAITING))
"""What is compared, in one setting each."""


def trainings(names: Sequence[str] | None, turns: Sequence[int] | None, more: Sequence[str]) -> list[Training]:
    """The runs in the order of their turns; UserError for a name that there is not.

    turns  numbers of the turns to be made; None: all that a claim about speed needs
    more   further overrides of all runs
    """
    for name in names or ():
        if name not in MEASURED:
            raise UserError(f"--methods: no {name!r}; there is: {', '.join(MEASURED)}")
    return [
        Training(
            f"{label.replace(' ', '-')}-{turn}", label, Cluster(MEASURED[label].setting.link, HOSTS), CONFIG,
            latest((*MEASURED[label].words, *more)), keeps=("trace.json",), may_diverge=False,
        )
        for turn in (range(TURNS) if turns is None else turns)
        for label in dict.fromkeys(names or MEASURED)
    ]  # fmt: skip


def latest(words: Sequence[str]) -> tuple[str, ...]:
    """The last of several values for a key."""
    return tuple({word.partition("=")[0]: word for word in words}.values())


def claims_of(part: str) -> list[Claim]:
    """Claims about this part."""
    claims = load(Path(__file__).parents[1]).claims.values()
    return [claim for claim in claims if claim.about["task"] == part]
