"""What a run left in its folder, and whether two runs ended alike, to the bit."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


def losses(folder: Path) -> list[float]:
    """Loss of every step, which must be there once each and in order."""
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(len(lines)))
    return [line["loss"] for line in lines]


def record(folder: Path) -> dict[str, Any]:
    """record.json."""
    return json.loads((folder / "record.json").read_text())


def checkpoints(folder: Path) -> list[Path]:
    """The run's checkpoints, oldest first."""
    return sorted((folder / "checkpoints").glob("step-*"))


def tensors(folder: Path) -> dict[str, Tensor]:
    """Everything in the newest checkpoint."""
    files = sorted(checkpoints(folder)[-1].glob("*.safetensors"))
    return {f"{file.name}: {name}": tensor for file in files for name, tensor in load_file(file).items()}


def assert_same_end(folder: Path, reference: Path) -> None:
    """Parameters, momentum, batch statistics, residuals, losses and history are equal to the last bit."""
    assert checkpoints(folder)[-1].name == checkpoints(reference)[-1].name
    mine, theirs = tensors(folder), tensors(reference)
    assert mine.keys() == theirs.keys()
    different = [name for name in theirs if not torch.equal(mine[name], theirs[name])]
    assert not different, f"different: {different}"
    assert losses(folder) == losses(reference)
    kept = ("epoch", "loss", "top1", "test_loss")
    histories = [[[entry[key] for key in kept] for entry in record(f)["history"]] for f in (folder, reference)]
    assert histories[0] == histories[1]
    assert record(folder)["status"] == record(reference)["status"] == "finished"
    assert record(folder)["final"] == record(reference)["final"]
