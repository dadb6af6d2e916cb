"""What is refused, found by trying: combinations of settings, and the line that each is answered with."""

import tempfile

import torch

from wirebench.comm.hvd import HorovodCommunicator
from wirebench.compose.build import compose
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.utils.package import CONFIGS

CONFIG = CONFIGS / "synthetic/toy.toml"
REFUSED = (
    "scheduler.name=builtin compressor.name=topk",
    "scheduler.name=builtin engine.name=local",
    "scheduler.name=dear collective.name=native",
    "scheduler.name=wfbp scheduler.profile=FOLDER",
    "scheduler.name=wfbp compressor.name=fetch_sgd",
    "compressor.name=fetch_sgd optimizer.nesterov=true",
    "compressor.name=dgc compressor.momentum=0.9 optimizer.momentum=0.9",
    "compressor.name=qsgd compressor.warmup=[0.25]",
    "compressor.name=iwp compressor.voters=8 engine.workers=4",
    "compressor.name=int8 compressor.sum_bits=8 engine.workers=128",
    "collective.name=blueconnect collective.factors=[2,3] engine.workers=4",
    "collective.name=native collective.wire=int8",
    "collective.name=ring collective.wire=int8 compressor.name=powersgd",
    "collective.name=ring collective.wire=int7",
    "scheduler.name=easgd collective.name=ring collective.wire=bf16",
    "network.topology=2+3 engine.workers=4",
    "network.dilation=10 model.name=toy",
)
"""Refused settings on virtual workers, without invalid values of options and unknown names."""
HOROVOD = "engine.name=horovod engine.rounds=alltoall compressor.name=bf16 collective.name=native"


class _Alone:
    """What stands for Horovod in a process that no launcher started."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2


def table() -> str:
    """The refused settings and their error messages, as Markdown."""
    said = [(settings, refusal(settings)) for settings in REFUSED] + [(HOROVOD, _of_horovod())]
    rows = [f"| {' '.join(f'`{each}`' for each in settings.split())} | {text} |" for settings, text in said]
    return "\n".join(["| settings | answer |", "| --- | --- |", *rows])


def refusal(settings: str) -> str:
    """What a run of a small model with these settings is answered with; AssertionError where it is composed."""
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        small = {"engine.name": "local", "data.batch_size": "1", "output.dir": f"{folder}/run"}
        chosen = small | dict(each.split("=", 1) for each in settings.split())
        try:
            run = compose(loader.load(CONFIG, [f"{key}={value}" for key, value in chosen.items()]))
        except UserError as error:
            return str(error)
        finally:
            torch.set_num_threads(threads)
        run.close()
    raise AssertionError(f"not refused: {settings}")


def _of_horovod() -> str:
    """The communicator answers before it asks Horovod for anything."""
    try:
        HorovodCommunicator(_Alone(), None, 1.0).all_reduce(torch.zeros(2, dtype=torch.bfloat16))
    except UserError as error:
        return str(error)
    raise AssertionError(f"not refused: {HOROVOD}")
