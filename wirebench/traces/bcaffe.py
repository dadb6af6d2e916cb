"""Make a trace of a layer log of B-Caffe, the MG-WFBP authors' code.

  I0207 16:23:08.165047 35803 distributed.cpp:112] [0, 9408, 14744.1, 408]

Each line of the log, such as this one, describes a parameter tensor: its number in forward order, its elements, and the
microseconds of its layer's backward pass and of its all-reduce. Weight and bias have the same backward time and are one
message there, so a layer of the trace contains both. The last pass of the log counts. Forward times are not logged: as
in the authors' simulator they are half of the backward times.
"""

import argparse
import math
import re
from pathlib import Path

from wirebench.errors import UserError
from wirebench.simulation.trace import Trace, TraceLayer

LINE = re.compile(r"distributed\.cpp:\d+\] \[(\d+), (\d+), ([-+.\de]+), (\d+)(?:, \d+)?\]\s*$")
FORWARD_SHARE = 0.5
HOW = (
    "backward times measured in the job, layers without parameters not timed; forward times are half of the backward "
    "times, as in the authors' simulator"
)


def convert(options: argparse.Namespace, text: bytes) -> Trace:
    """The trace of the last pass in a log's text; UserError names the file and the line that is wrong."""
    if not options.hardware:
        raise UserError("--hardware: a log of B-Caffe does not say what it was recorded on")
    log, rows = options.log, read(options.log, text)
    starts = [i for i, row in enumerate(rows) if row[0] == 0]
    rows = rows[starts[-1] :] if starts else rows
    layers = []
    for number in range(0, len(rows), 2):
        pair = rows[number : number + 2]
        if len(pair) < 2 or pair[0][2] != pair[1][2] or [row[0] for row in pair] != [number, number + 1]:
            raise UserError(f"{log}: tensors {number} and {number + 1} of its last pass are not one layer's two")
        seconds = round(pair[0][2] * 1e-6, 9)
        numel = pair[0][1] + pair[1][1]
        # A parameter of a module: a split schedule updates it when the module begins.
        layers.append(
            TraceLayer(f"layer{number // 2 + 1:02d}.weight", numel, round(FORWARD_SHARE * seconds, 9), seconds)
        )
    source = f"{options.source or f'{log.name} of B-Caffe'}: {HOW}"
    return Trace(
        options.out.stem, options.model, options.hardware, options.batch, False, source, "none (Caffe)", tuple(layers)
    )


def read(log: Path, text: bytes) -> list[tuple[int, int, float]]:
    """(tensor, elements, backward microseconds) of every line."""
    try:
        lines = text.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{log}: cannot be read ({error})") from error
    passes = []
    for number, line in enumerate(lines, 1):
        match = LINE.search(line)
        if match is None:
            raise UserError(f"{log}: line {number} is not a layer's: ... distributed.cpp:112] [0, 9408, 14744.1, 408]")
        try:
            tensor, numel, microseconds = int(match[1]), int(match[2]), float(match[3])
        except ValueError as error:
            raise UserError(f"{log}: line {number}: {match[3]!r} is no number of microseconds") from error
        if not math.isfinite(microseconds) or microseconds < 0:
            raise UserError(f"{log}: line {number}: a backward pass takes 0 microseconds or more, not {match[3]}")
        passes.append((tensor, numel, microseconds))
    if not passes:
        raise UserError(f"{log}: is empty")
    return passes
