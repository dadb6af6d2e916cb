"""How the methods of today are slowed down on emulated hosts."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from papers.claim import Claim
from papers.published import load

CONFIG = Path("configs/tables/today_speed.toml")


class Setting(NamedTuple):
    """The rate of every host's link, how much slower than life everything is, and the batch."""

    link: str
    dilation: int
    batch: int

    @property
    def words(self) -> tuple[str, ...]:
        """Overrides."""
        return f"network.dilation={self.dilation}", f"data.batch_size={self.batch}"


def latest(words: Sequence[str]) -> tuple[str, ...]:
    """The last of several values for a key."""
    return tuple({word.partition("=")[0]: word for word in words}.values())


def claims_of(part: str) -> list[Claim]:
    """Claims about this part."""
    claims = load(Path(__file__).parents[1]).claims.values()
    return [claim for claim in claims if claim.about["task"] == part]
