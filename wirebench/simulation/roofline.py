"""Seconds of operations on a GPU that is not at hand, by the roofline model (Williams et al. 2009).

An operation takes the larger of its arithmetic at the attainable rate and its bytes, read and written once, at the full
memory bandwidth.
"""

import re
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Gpu(NamedTuple):
    """A GPU in fp32 (no tensor cores, no TF32), by the vendor's data sheet.

    mark         the words that names of such hardware have in common
    peak_tflops  single precision, boost clock
    memory_gbs   memory bandwidth in 10^9 bytes per second
    efficiency   attainable share of the peak: assumed, not measured
    """

    label: str
    mark: str
    peak_tflops: float
    memory_gbs: float
    source: str
    efficiency: float = 0.5

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """Seconds of one operation of so many floating-point operations and bytes, by the roofline."""
        return max(flops / (self.peak_tflops * 1e12 * self.efficiency), moved_bytes / (self.memory_gbs * 1e9))


GPUS = {
    "k80": Gpu(
        "NVIDIA Tesla K80, one of its two GPUs", "K80", 4.37, 240, "half of the board's 8.74 TFLOPS and 480 GB/s"
    ),
    "gtx1080ti": Gpu(
        "NVIDIA GeForce GTX 1080 Ti", "1080 Ti", 11.34, 484, "3584 cores x 1.582 GHz x 2; 11 Gbit/s x 352 bit"
    ),
    "v100": Gpu("NVIDIA Tesla V100 SXM2", "V100", 15.7, 900, "data sheet of the V100, 2018"),
    "a100": Gpu("NVIDIA A100 40GB", "A100", 19.5, 1555, "data sheet of the A100, 2020"),
    "h200": Gpu("NVIDIA H200 SXM", "H200", 67, 4800, "data sheet of the H200, 2024"),
}


def of_hardware(name: str) -> Gpu | None:
    """The GPU that a trace's or a driver's name of hardware means; None for any other."""
    return next((gpu for gpu in GPUS.values() if re.search(rf"\b{gpu.mark}\b", name)), None)


class Roofline(TorchDispatchMode):
    """Runs the operations inside its block as they are, and adds the seconds of each on `gpu` to `seconds`."""

    def __init__(self, gpu: Gpu) -> None:
        # Imported where it is needed: it brings Triton along, a tenth of what every rank's start takes.
        from torch.utils.flop_counter import flop_registry

        super().__init__()
        self.gpu, self.seconds = gpu, 0.0
        self._formulas = flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, then price it; views move no bytes and cost nothing."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not func.is_view:
            formula = self._formulas.get(func.overloadpacket)
            flops = formula(*args, **kwargs, out_val=out) if formula else 0
            moved = sum(t.nbytes for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor))
            self.seconds += self.gpu.seconds(flops, moved)
        return out

    def take(self) -> float:
        """The seconds added since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds
