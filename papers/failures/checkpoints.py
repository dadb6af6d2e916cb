"""What checkpoints cost, as `wirebench bench checkpoint` measured it: a file for each compressor."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from papers import benchmarks
from papers.claim import Claim
from papers.estimate import mean
from papers.findings import Finding
from wirebench.errors import UserError
from wirebench.record.overhead_results import CHECKPOINT
from wirebench.utils.markdown import table

FOLDER = "checkpoint"
MODEL = "vgg16"
COMPRESSORS = ("none", "topk")
SETTING = {"model": MODEL, "every": 50, "processes": 4}
"""Setting of the claim."""
HEAD = ("compressor", "checkpoint", "every", "step ms", "stall ms [least to most of the turns]",
        "share of the steps' time", "steps with / without [10 % - 90 %]")  # fmt: skip


class Cost(NamedTuple):
    """A file: its result, and the rules of trust that it breaks."""

    path: Path
    result: Mapping[str, Any]
    rules: tuple[str, ...]

    def finding(self, claim: Claim) -> Finding:
        """The stall over the steps between two checkpoints, with its interval."""
        stalls, about = self.result["stalls"], f"compressor {self.result['compressor']}"
        share = mean(stalls).mapped(lambda seconds: seconds * self.result["stall_share"] / statistics.fmean(stalls))
        return Finding(claim, share.percent(2), claim.judge(share), about, records=(self.path,), rules=self.rules)

    def cells(self) -> list[str]:
        """Return the cells of its row in the table."""
        result, ratio, stalls = self.result, self.result["ratio"], self.result["stalls"]
        return [
            result["compressor"],
            f"{result['checkpoint_bytes'] / 1e6:.0f} MB",
            f"{result['every']} steps",
            f"{1e3 * result['not saving']['median']:.0f}",
            f"{1e3 * statistics.fmean(stalls):.0f} [{1e3 * min(stalls):.0f} - {1e3 * max(stalls):.0f}]",
            f"{100 * result['stall_share']:.2f} %",
            f"{ratio['median']:.4f} [{ratio['p10']:.4f} - {ratio['p90']:.4f}]",
        ]


def load(folder: Path) -> list[Cost]:
    """The files below `folder` that are there; UserError for a damaged one, or one of something else."""
    return [_read(path, name) for name in COMPRESSORS if (path := file(folder, name)).exists()]


def _read(path: Path, compressor: str) -> Cost:
    rules, result = benchmarks.rules(path), json.loads(path.read_text())
    wanted = {"kind": CHECKPOINT, **SETTING, "compressor": compressor}
    other = [f"{name} {result.get(name)!r}" for name, value in wanted.items() if result.get(name) != value]
    if other:
        raise UserError(f"{path}: has {', '.join(other)}; expected {wanted}")
    return Cost(path, result, rules)


def file(folder: Path, compressor: str) -> Path:
    """Where a compressor's result is."""
    return folder / FOLDER / f"{MODEL}-{compressor}.json"


def lines(costs: Sequence[Cost]) -> list[str]:
    """A Markdown table; nothing where nothing was measured."""
    return table(HEAD, [each.cells() for each in costs]) if costs else []
