"""What checkpoints cost, as `wirebench bench checkpoint` measured it: a file for each compressor."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from suite.studies import benchmarks
from suite.studies.claim import Claim
from suite.studies.findings import Finding
from wirebench.utils.markdown import table

FOLDER = "checkpoint"
MODEL = "vgg16"
COMPRESSORS = ("none", "topk")
HEAD = ("compressor", "checkpoint", "every", "step ms", "stall ms [10 % - 90 % of turns]", "share of the steps' time",
        "steps with / without [10 % - 90 %]")  # fmt: skip


class Cost(NamedTuple):
    """A file: its result, and the rules of trust that it breaks."""

    path: Path
    result: Mapping[str, Any]
    rules: tuple[str, ...]

    def finding(self, claim: Claim) -> Finding:
        """The stall over the steps between two checkpoints, with its spread."""
        about, share = f"compressor {self.result['compressor']}", self.result["stall_share"]
        stall = self.result["stall"]
        spread = tuple(share * stall[end] / stall["mean"] for end in ("p10", "p90"))
        here = f"{100 * share:.2f} % [{100 * spread[0]:.2f} - {100 * spread[1]:.2f}]"
        verdict = claim.judge(share, (spread[0], spread[1]))
        return Finding(claim, here, verdict, about, records=(self.path,), rules=self.rules)

    def cells(self) -> list[str]:
        """Of the table."""
        result, stall, ratio = self.result, self.result["stall"], self.result["ratio"]
        return [
            result["compressor"],
            f"{result['checkpoint_bytes'] / 1e6:.0f} MB",
            f"{result['every']} steps",
            f"{1e3 * result['not saving']['median']:.0f}",
            f"{1e3 * stall['mean']:.0f} [{1e3 * stall['p10']:.0f} - {1e3 * stall['p90']:.0f}]",
            f"{100 * result['stall_share']:.2f} %",
            f"{ratio['median']:.4f} [{ratio['p10']:.4f} - {ratio['p90']:.4f}]",
        ]


def load(folder: Path) -> list[Cost]:
    """The files below `folder` that are there; UserError for a damaged one."""
    paths = [path for name in COMPRESSORS if (path := file(folder, name)).exists()]
    rules = [benchmarks.rules(path) for path in paths]
    return [Cost(path, json.loads(path.read_text()), those) for path, those in zip(paths, rules, strict=True)]


def file(folder: Path, compressor: str) -> Path:
    """Where a compressor's result is."""
    return folder / FOLDER / f"{MODEL}-{compressor}.json"


def lines(costs: Sequence[Cost]) -> list[str]:
    """A Markdown table; nothing where nothing was measured."""
    return table(HEAD, [each.cells() for each in costs]) if costs else []
