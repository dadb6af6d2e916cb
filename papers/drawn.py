"""The figures of a paper that records have the data for, and what is missing for the others."""

from dataclasses import dataclass, field

from wirebench.figures.style import Figure


@dataclass(frozen=True)
class Drawn:
    """Figures and their captions by file name; missing: why a figure was not drawn, by file name."""

    figures: dict[str, Figure | None] = field(default_factory=dict)
    captions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, caption: str, figure: Figure | str) -> None:
        """A figure, or the reason why there is none; then an older file of this name goes."""
        if isinstance(figure, str):
            self.figures[name], self.missing[name] = None, f"{caption}: {figure}"
        else:
            self.figures[name], self.captions[name] = figure, caption

    def lines(self) -> list[str]:
        """Lines of a report: the figures, then what is missing."""
        shown = [f"![{caption}]({name})" for name, caption in self.captions.items()]
        left_out = [f"- Not drawn: {reason}." for reason in self.missing.values()]
        return [*shown, *[""] * bool(shown), *left_out, *[""] * bool(left_out)]
