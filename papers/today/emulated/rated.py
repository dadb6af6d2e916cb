"""How long the methods' compressors work on this machine: measured before their steps are, and read by the planner."""

from dataclasses import dataclass
from pathlib import Path

from papers.prediction.listed import DENSITY
from papers.runner import WIREBENCH, Command, Launch, within
from papers.today.emulated.order import METHODS, compressor_of
from wirebench.planner.compositions import DENSE
from wirebench.planner.resimulated import RATES

SIZES = ("4k", "0.27m", "14.7m")
"""Elements of calls, of ResNet-20, and of VGG-16 for CIFAR-10; between them costs are interpolated. The last two
have their models' layers: a square matrix of 519 rows has no chunk of 64, so that DeMo would send all of it."""


@dataclass(frozen=True)
class Rated:
    """The measurement as a cell of a network's part: rates.jsonl in its folder, which its predictions are made of.

    What is there is kept, also by --again: predictions that are signed rest on it.
    """

    label: str = RATES

    def check(self) -> None:
        """Nothing can be wrong with it."""

    def is_there(self, out: Path) -> bool:
        """Whether it was made."""
        return (out / RATES).is_file()

    def make(self, out: Path, launch: Launch) -> bool:
        """Measure, unless that was done."""
        if self.is_there(out):
            return True
        path = out / RATES
        made = path.with_name(f".{path.name}.part")
        made.parent.mkdir(parents=True, exist_ok=True)
        try:
            if launch(self.command(made)) or not made.is_file():
                return False
            made.replace(path)
            return True
        finally:
            made.unlink(missing_ok=True)

    def command(self, path: Path) -> Command:
        """Return the command that measures into `path`."""
        chosen = dict.fromkeys(name for label in METHODS if (name := compressor_of(label)) != DENSE)
        return [
            *WIREBENCH, "bench", "compressors", "--compressors", *chosen, "--density", f"{DENSITY:g}",
            "--sizes", *SIZES, "--no-rivals", "--json", within(path),
        ]  # fmt: skip
