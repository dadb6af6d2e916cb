"""A run that counted bytes: its three ratios, their bound, its density, and how long coordinates waited."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers import trust
from papers.iwp.variants import unlabelled
from papers.rows import Row, with_energy
from wirebench.record import notes, recorded
from wirebench.record.notes import NotedRun
from wirebench.utils.markdown import table

NEEDS = {"label": str, "launch": str}
HEAD = (
    "variant", "values only", "with masks", "on the wire", "bound 32/R", "density %", "density % at the end",
    "sent in the first and the last epoch", "steps since sent, mean", "at most",
)  # fmt: skip


LEARNED = 0.9
"""A network has begun to learn if its last loss is at most this share of the first epoch's."""


@dataclass(frozen=True)
class CountedValues:
    """One run of a variant."""

    run: NotedRun

    @property
    def label(self) -> str:
        """The variant."""
        return unlabelled(self.run.note["label"])

    @property
    def is_iwp(self) -> bool:
        """Whether it has masks."""
        return bool(self.run.has("config", "compressor", "name") == "iwp")

    @property
    def density(self) -> float | None:
        """Mean share of the coordinates that were sent, of the tensors that are compressed."""
        return self.health("density")

    @property
    def values(self) -> float | None:
        """Dense over sent values, of the steps that count."""
        return self._ratio("values") if self.is_iwp else None

    @property
    def as_sent(self) -> float | None:
        """The same with all that tells the values' places: masks, or indices and scales.

        A worker sends masks of the layers that it votes on; all voters' masks are counted, as if it sent them all.
        """
        if not self.is_iwp:
            return self._ratio("with_indices")
        dense, masks = self.run.has("bytes_per_step", "dense"), self.health("mask_bytes")
        return None if None in (dense, masks, self.values) else dense / (dense / self.values + masks)

    def _ratio(self, name: str) -> float | None:
        ratio = self.run.has("compression_ratio", name)
        return None if ratio is None else float(ratio)

    @property
    def unlearned(self) -> str:
        """Why the run does not show the payload of a network that learns; "" where it does.

        A gradient's share of the weights, by which IWP chooses, is another one as long as the loss does not fall.
        """
        losses = [entry["loss"] for entry in self.run.record["history"] if entry.get("loss") is not None]
        if len(losses) > 1 and losses[-1] <= LEARNED * losses[0]:
            return ""
        told = f"; its loss went from {losses[0]:.2f} to {losses[-1]:.2f}" if losses else ""
        return f"the network has not begun to learn in {self.steps} steps{told}"

    @property
    def wire(self) -> float | None:
        """Bytes of a dense ring over what a worker sent. A gathered mask crosses a link once, a summed value twice."""
        ratio = self.run.has("compression_ratio", "wire")
        return None if ratio is None else float(ratio)

    @property
    def bound(self) -> float | None:
        """The most that raw bitmaps of R voters allow."""
        settings = self.run.record["config"]["compressor"]
        return 32 / settings["voters"] if self.is_iwp and settings["masks"] == "bits" else None

    @property
    def waited(self) -> tuple[float, float] | None:
        """Steps since a coordinate was last sent, at the last reading: of the mean coordinate, and of the longest."""
        mean, longest = (self.health(name, "last") for name in ("waiting_mean", "waiting_max"))
        return None if mean is None or longest is None else (mean, longest)

    @property
    def steps(self) -> int:
        """Steps that the run did."""
        return int(self.run.record.get("steps_done") or 0)

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules of trust that the record breaks."""
        return trust.rules([self.run], "counts")

    def health(self, name: str, which: str = "mean") -> float | None:
        """A measure of the compressor's own, by its readings' mean or the last one."""
        found: Any = self.run.has("health", f"compressor/{name}", which)
        return None if found is None else float(found)

    def cells(self) -> list[str]:
        """Return the cells of its row in the table."""
        waited = self.waited or (None, None)
        ratios = (f"{each:.2f}x" if each else "-" for each in (self.values, self.as_sent, self.wire))
        densities = (self.density, self.health("density", "last")) if self.is_iwp else (None, None)
        title = self.label + (" (diverged)" if self.run.diverged else "")
        return [
            title,
            *ratios,
            f"{self.bound:g}x" if self.bound else "-",
            *("-" if each is None else f"{100 * each:.2f}" for each in densities),
            self._course(),
            *("-" if each is None else f"{each:.1f}" for each in waited),
        ]

    def _course(self) -> str:
        """Bytes that a worker sent in the first epoch and in the last, in MB."""
        totals = [entry.get("wire_bytes_total") for entry in self.run.record["history"]]
        if len(totals) < 2 or None in totals:
            return "-"
        return f"{totals[0] / 1e6:.1f} and {(totals[-1] - totals[-2]) / 1e6:.1f} MB"


def load(folder: Path) -> list[CountedValues]:
    """All runs of a part, by name; nothing where there is no such folder."""
    return [CountedValues(run) for run in recorded.noted(folder, NEEDS)]


def document(part: str, rows: Sequence[CountedValues]) -> str:
    """The table of a part."""
    record = rows[0].run.record
    config = record["config"]
    return "\n".join(
        [
            f"# What IWP sends: {part}",
            "",
            f"{config['model']['name']} on {config['data']['name']}, {record['world_size']} virtual workers of "
            f"{config['data']['batch_size']} images, {rows[0].steps} steps, on {rows[0].run.machine}; made by "
            f"`wirebench study iwp run`, {notes.commits(row.run for row in rows)}.",
            "",
            *table(*with_energy(HEAD, [row.cells() for row in rows], [Row("", (row.run,)) for row in rows])),
            LEGEND,
            "",
            "![compression ratios](ratios.svg)",
            "",
        ]
    )


LEGEND = (
    "Ratios are dense bytes over sent bytes in the steps that count. The first counts values only. The one with masks "
    "counts values and the masks of all voters, as if each worker had sent them; for other methods it counts indices, "
    "scales and bits. The one on the wire is a dense ring over the bytes that a worker sent. Biases and normalisation, "
    "which go dense, are included. The bound counts raw bitmaps of R voters. Densities are means of the readings of "
    "`output.health_every`, and the last of them."
)
