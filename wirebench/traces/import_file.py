r"""Make a trace of what another program has recorded: a PyTorch profiler's file, or a layer log of B-Caffe.

  wirebench trace import trace.json --model "my net, 3x224x224" --batch 64 --out mine.json
  wirebench trace import tmpcomm.log --model "GoogLeNet, 3x224x224, 1000 classes" --hardware "NVIDIA Tesla K80" \
      --batch 64 --out googlenet_k80.json

A profiler's file is what torch.profiler.profile(record_shapes=True) exports of a few training steps, packed by gzip or
not; it needs ProfilerActivity.CPU and, on a GPU, ProfilerActivity.CUDA as well.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from wirebench.errors import UserError
from wirebench.simulation.trace import MOST_IMAGES
from wirebench.traces import bcaffe, import_kineto, profiler_file
from wirebench.utils.cli import check_outputs, parser_of
from wirebench.utils.files import keeping

UNITS = ("images", "samples", "tokens")


def main(arguments: Sequence[str]) -> int:
    """Convert the file and write its trace."""
    options = _parser().parse_args(arguments)
    if not 1 <= options.batch <= MOST_IMAGES:
        raise UserError(f"--batch: lies in 1 ... {MOST_IMAGES}, got {options.batch}")
    check_outputs(out=options.out, reads=[options.log])
    text = profiler_file.read(options.log)
    trace = (import_kineto if _is_profile(text) else bcaffe).convert(options, text)
    with keeping(options.out):
        trace.save(options.out)
    times = f"{trace.forward_seconds:.4f} s forward, {trace.backward_seconds:.4f} s back"
    print(f"{options.out}: {len(trace.layers)} layers, {trace.numel:,} parameters, {times}")
    return 0


def _is_profile(text: bytes) -> bool:
    """Whether it is JSON."""
    return text[:64].lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n\0").startswith((b"{", b"["))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("trace import", __doc__)
    parser.add_argument("log", type=Path, help="e.g. trace.json, or tmpcomm.log")
    parser.add_argument("--model", required=True, metavar="WORDS", help="what was trained, e.g. with image size")
    parser.add_argument(
        "--hardware", default="", metavar="WORDS", help="on what (the GPU that a profiler's file names)"
    )
    parser.add_argument("--batch", type=int, required=True, metavar="N", help="samples of a step and worker")
    parser.add_argument("--unit", choices=UNITS, default="samples", help="what a profile's batch counts (%(default)s)")
    parser.add_argument("--source", default="", metavar="WORDS", help="where the file comes from (its name)")
    parser.add_argument("--torch", default="unknown", metavar="VERSION", help="the PyTorch that recorded a profile")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the trace to write (.json)")
    return parser
