"""A rank of train.py that computes on the CPU and samples a GPU that is made up: its UUID is in UUIDS, - for none."""

import os
import sys

import pytest
import torch

from tests.telemetry import fake_nvml
from wirebench.comm.launch import end_process
from wirebench.compose import bookkeeping
from wirebench.compose.run import main
from wirebench.telemetry import environment, gpu


def see_a_gpu(monkeypatch: pytest.MonkeyPatch, uuid: str = "1234", *unsupported: str) -> fake_nvml.FakeLibrary:
    """The run's own samplers find this GPU."""
    fake = fake_nvml.install(monkeypatch, *unsupported, uuid=uuid, known=(f"GPU-{uuid}",))
    monkeypatch.setattr(bookkeeping, "sampler", lambda _device: gpu.sampler(torch.device("cuda", 0)))
    monkeypatch.setattr(environment, "_gpus", lambda: ["Fake GPU"])
    return fake


if __name__ == "__main__":
    own = os.environ["UUIDS"].split(",")[int(os.environ.get("RANK") or os.environ["HOROVOD_RANK"])]
    if own != "-":
        see_a_gpu(pytest.MonkeyPatch(), own)
    end_process(main(sys.argv[1:]))
