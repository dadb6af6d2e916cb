"""Hugging Face's Trainer with a compressor of the suite: it makes the DDP model, a callback registers the hook.

torchrun --nproc-per-node 2 examples/hf_trainer.py
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import wirebench
from wirebench import compressors


class Classifier(nn.Module):
    """Two layers on scikit-learn's digits; returns what Trainer wants of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Hooked(TrainerCallback):
    """Registers a communication hook on the model that Trainer has wrapped, and keeps its state with the checkpoints.

    Residuals differ between ranks, and Trainer writes rank 0's model and optimizer alone.
    """

    def __init__(self, hook: Any) -> None:
        self.hook, self.trainer = hook, None

    def on_train_begin(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
        """Trainer's; after a resume `state.global_step` is the checkpoint's."""
        self.trainer.model_wrapped.register_comm_hook(None, self.hook)
        if state.global_step:
            self.hook.load_state_dict(torch.load(self._file(arguments, state)))

    def on_save(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
        """Trainer's, on every rank."""
        torch.save(self.hook.state_dict(), self._file(arguments, state))

    def _file(self, arguments: Any, state: Any) -> Path:
        return Path(arguments.output_dir) / f"checkpoint-{state.global_step}" / f"hook-{arguments.process_index}.pt"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--folder", help="of checkpoints: one is written after each epoch, and the last one is gone on from"
    )
    options = parser.parse_args()
    torch.manual_seed(0)  # Trainer's own seed comes after the model is made
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    dataset = [{"inputs": image, "labels": int(label)} for image, label in zip(images, digits.target, strict=True)]

    hook = wirebench.comm_hook(compressors.build("topk", density=0.01))
    callback = Hooked(hook)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        arguments = TrainingArguments(
            folder, num_train_epochs=options.epochs, per_device_train_batch_size=32, learning_rate=3e-3, use_cpu=True,
            report_to=[], save_strategy="epoch" if options.folder else "no", logging_strategy="no",
            disable_tqdm=True, seed=0, ddp_backend="gloo",
        )  # fmt: skip
        trainer = Trainer(Classifier(), arguments, train_dataset=dataset, callbacks=[callback])
        callback.trainer = trainer
        going_on = options.folder is not None and any(Path(folder).glob("checkpoint-*"))
        loss = trainer.train(resume_from_checkpoint=going_on or None).training_loss
    if trainer.is_world_process_zero():
        ratio = hook.report()["compression_ratio"]["wire"]
        print(f"mean loss {loss:.4f}, {ratio:.0f} times fewer bytes on the wire")


if __name__ == "__main__":
    main()
