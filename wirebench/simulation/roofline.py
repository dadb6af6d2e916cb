"""Seconds of operations on a GPU that is not at hand, by the roofline model (Williams et al. 2009).

An operation takes the larger of its arithmetic at the attainable rate and its bytes, read and written once, at the full
memory bandwidth.
"""

import re
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""fp32: no tensor cores. tf32: tensors stay fp32, and tensor cores multiply them. bf16 and fp16: as under autocast, 16
bits where that casts, at the rate of tensor cores, and fp32 elsewhere."""
CAST: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype that autocast casts to."""


VIEWS = {torch.ops.aten._unsafe_view}
"""Operations that move no bytes and do not call themselves views."""


class Gpu(NamedTuple):
    """A GPU by the vendor's data sheet.

    mark         the words that names of such hardware have in common, as a regular expression
    peak_tflops  single precision without tensor cores, boost clock
    memory_gbs   memory bandwidth in 10^9 bytes per second
    tf32_tflops  of tensor cores, dense: where a data sheet has the rate of sparse matrices alone, half of that; None
                 for a GPU that has no such rate
    bf16_tflops  of tensor cores, dense as above, with sums in fp32
    fp16_tflops  of tensor cores, dense as above, for GPUs without bf16; all others have the same rate for both
    nvlink_gbs   of the NVLinks between the GPUs of a machine, in each direction; None for a GPU on PCIe
    efficiency   attainable share of the peak: assumed, not measured
    """

    label: str
    mark: str
    peak_tflops: float
    memory_gbs: float
    source: str
    tf32_tflops: float | None = None
    bf16_tflops: float | None = None
    fp16_tflops: float | None = None
    nvlink_gbs: float | None = None
    efficiency: float = 0.5

    def peak(self, precision: Precision) -> float | None:
        """TFLOPS in this precision; None where the GPU has no rate for it."""
        half = self.fp16_tflops or self.bf16_tflops
        peaks = {"fp32": self.peak_tflops, "tf32": self.tf32_tflops, "bf16": self.bf16_tflops, "fp16": half}
        return peaks[precision]

    def seconds(self, flops: float, moved_bytes: float, precision: Precision = "fp32") -> float:
        """Seconds of one operation with `flops` floating-point operations and `moved_bytes` bytes, by the roofline."""
        peak = self.peak(precision)
        assert peak is not None, f"{self.label} has no rate for {precision}"
        return max(flops / (peak * 1e12 * self.efficiency), moved_bytes / (self.memory_gbs * 1e9))


GPUS = {
    "k80": Gpu(
        "NVIDIA Tesla K80, one of its two GPUs", "K80", 4.37, 240, "half of the board's 8.74 TFLOPS and 480 GB/s"
    ),
    "gtx1080ti": Gpu(
        "NVIDIA GeForce GTX 1080 Ti", "1080 Ti", 11.34, 484, "3584 cores x 1.582 GHz x 2; 11 Gbit/s x 352 bit"
    ),
    "v100": Gpu(
        "NVIDIA Tesla V100 SXM2", "V100", 15.7, 900, "data sheet of the V100, 2018", fp16_tflops=125, nvlink_gbs=150
    ),
    "t4": Gpu("NVIDIA T4", "T4", 8.1, 320, "data sheet of the T4, 2019", fp16_tflops=65),
    # Tensor cores with sums in fp32: 142 and 285 TFLOPS are with sums in fp16.
    "rtx3090": Gpu(
        "NVIDIA GeForce RTX 3090", "RTX 3090(?! Ti)", 35.6, 936, "white paper of the GA102, 2020, appendix A", 35.6, 71
    ),
    # 309.7 TFLOPS with sparsity.
    "a6000": Gpu("NVIDIA RTX A6000", "A6000", 38.7, 768, "data sheet of the RTX A6000, 2020", 77.4, 154.8),
    # The card of 80 GB named PCIe has another memory.
    "a100": Gpu(
        "NVIDIA A100 40GB", "A100(?!.*80GB)", 19.5, 1555, "data sheet of the A100, 2020", 156, 312, nvlink_gbs=300
    ),
    "a100_80gb": Gpu(
        "NVIDIA A100 SXM 80GB", "A100(?=.*SXM)(?=.*80GB)", 19.5, 2039, "data sheet of the A100 80GB, 2021", 156, 312,
        nvlink_gbs=300,
    ),
    "a10": Gpu("NVIDIA A10", "A10", 31.2, 600, "data sheet of the A10, 2021", 62.5, 125),
    # 120 and 242 TFLOPS with sparsity.
    "l4": Gpu("NVIDIA L4", "L4", 30.3, 300, "data sheet of the L4, 2023", 60, 121),
    # Tensor cores with sums in fp32: 330 TFLOPS are with sums in fp16.
    "rtx4090": Gpu(
        "NVIDIA GeForce RTX 4090", "RTX 4090(?! (D|Laptop))", 82.6, 1008,
        "white paper of the Ada GPUs, 2022, appendix A", 82.6, 165.2,
    ),
    # 366 and 733 TFLOPS with sparsity.
    "l40s": Gpu("NVIDIA L40S", "L40S", 91.6, 864, "data sheet of the L40S, 2023", 183, 362.05),
    # 989 and 1,979 TFLOPS with sparsity. The cards named PCIe and NVL have other rates.
    "h100": Gpu(
        "NVIDIA H100 SXM", "H100(?! (PCIe|NVL))", 67, 3350, "data sheet of the H100 SXM5, 2023", 494.5, 989.5,
        nvlink_gbs=450,
    ),
    "h200": Gpu("NVIDIA H200 SXM", "H200", 67, 4800, "data sheet of the H200, 2024", 494.5, 989.5, nvlink_gbs=450),
    # Of eight GPUs: 600 TFLOPS in fp32, 18 and 36 PFLOPS with sparsity in tf32 and bf16, 64 TB/s.
    "b200": Gpu(
        "NVIDIA B200 SXM", "B200", 75, 8000, "an eighth of the data sheets of HGX B200 and DGX B200, 2025", 1125, 2250,
        nvlink_gbs=900,
    ),
    "mi300x": Gpu("AMD Instinct MI300X", "MI300X", 163.4, 5300, "data sheet of the MI300X, 2023", 653.7, 1307.4),
}  # fmt: skip


GPU_NAMES = ("NVIDIA", "Tesla", "GeForce", "Quadro", "AMD Instinct", "AMD Radeon")
"""What the names of GPUs begin with, as their drivers have them."""


def is_gpu(name: str) -> bool:
    """Whether a trace's name of hardware is a GPU's, known or not."""
    return name.startswith(GPU_NAMES) or of_hardware(name) is not None


def of_hardware(name: str) -> Gpu | None:
    """The GPU that a trace's or a driver's name of hardware means; None for any other."""
    return next((gpu for gpu in GPUS.values() if re.search(rf"\b{gpu.mark}\b", name)), None)


class Roofline(TorchDispatchMode):
    """Runs the operations inside its block unchanged, and adds the seconds of each on `gpu` to `seconds`.

    precision  of matrix products and convolutions; one that autocast leaves alone is priced as fp32
    """

    def __init__(self, gpu: Gpu, precision: Precision = "fp32") -> None:
        # Imported where it is needed: it brings Triton along, a tenth of what every rank's start takes.
        from torch.utils.flop_counter import flop_registry

        super().__init__()
        self.gpu, self.precision, self.seconds = gpu, precision, 0.0
        self._formulas = flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, then price it; views move no bytes and cost nothing, nor do questions about a tensor."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not func.is_view and func.namespace != "prim" and func.overloadpacket not in VIEWS:
            formula = self._formulas.get(func.overloadpacket)
            flops = formula(*args, **kwargs, out_val=out) if formula else 0
            tensors = [each for each in tree_leaves((args, kwargs, out)) if isinstance(each, Tensor)]
            self.seconds += self.gpu.seconds(flops, sum(each.nbytes for each in tensors), self._precision_of(tensors))
        return out

    def _precision_of(self, tensors: list[Tensor]) -> Precision:
        half = CAST.get(self.precision)
        if half is not None and all(each.dtype is not half for each in tensors):
            return "fp32"
        return self.precision

    def take(self) -> float:
        """The seconds added since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds
