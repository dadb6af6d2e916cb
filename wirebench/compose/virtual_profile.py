"""The profile of virtual workers: a cluster with given costs, so that their runs can be repeated to the bit.

All of them live in one process, whose times do not describe a cluster. A scheduler that needs a profile gets the times
of a GTX 1080 Ti by the roofline, and message costs on the MG-WFBP paper's 10 Gbit/s Ethernet.
"""

from collections.abc import Sequence

from torch import nn

from wirebench.costmodel.formulas import ring
from wirebench.data.base import Batch
from wirebench.gradient.contract import Compressor
from wirebench.gradient.schedule import Cost
from wirebench.simulation.roofline import GPUS, Roofline
from wirebench.training.loss import cross_entropy

ALPHA_SECONDS, BYTES_PER_SECOND = 45.26e-6, 10e9 / 8
"""Start-up time of a message: MG-WFBP, Fig. 5(b), 90.52 us = 2 alpha; and the nominal rate."""


def virtual_cost(compressor: Compressor, size: int) -> Cost:
    """Seconds of an exchange by its elements: a ring of `size` workers sums what the compressor hands over."""
    line = ring(size, ALPHA_SECONDS, 1 / BYTES_PER_SECOND)
    return lambda numel: line.seconds(compressor.wire_bytes(numel, size) if numel else 0)


def virtual_seconds_of(model: nn.Module, names: Sequence[str], batch: Batch, batch_size: int) -> list[float]:
    """Backward seconds of the layers `names` (in backward order) for a batch, estimated from a pass over `batch`.

    model  may be used up
    """
    inputs, labels = batch
    roofline = Roofline(GPUS["gtx1080ti"])
    seconds = dict.fromkeys(names, 0.0)

    def arrived(name: str) -> None:
        seconds[name] = roofline.take() * batch_size / len(inputs)

    for name, parameter in model.named_parameters():
        if name in seconds:
            parameter.register_post_accumulate_grad_hook(lambda _parameter, name=name: arrived(name))
    with roofline:
        loss = cross_entropy(model(inputs), labels)
        roofline.take()
        loss.backward()
    return [seconds[name] for name in names]
