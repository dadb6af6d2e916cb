"""Hugging Face's Trainer with a compressor of the suite: it makes the DDP model, a callback registers the hook.

torchrun --nproc-per-node 2 examples/hf_trainer.py
"""

import argparse
import tempfile
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import compressors
import wirebench


class Classifier(nn.Module):
    """Two layers on scikit-learn's digits; returns what Trainer wants of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Hooked(TrainerCallback):
    """Registers a communication hook when Trainer has wrapped its model."""

    def __init__(self, hook: Any) -> None:
        self.hook, self.trainer = hook, None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.trainer.model_wrapped.register_comm_hook(None, self.hook)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)  # Trainer's own seed comes after the model is made
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    dataset = [{"inputs": image, "labels": int(label)} for image, label in zip(images, digits.target, strict=True)]

    hook = wirebench.comm_hook(compressors.build("topk", density=0.01))
    callback = Hooked(hook)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=options.epochs, per_device_train_batch_size=32, learning_rate=3e-3, use_cpu=True,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, seed=0, ddp_backend="gloo",
        )  # fmt: skip
        trainer = Trainer(Classifier(), arguments, train_dataset=dataset, callbacks=[callback])
        callback.trainer = trainer
        loss = trainer.train().training_loss
    if trainer.is_world_process_zero():
        ratio = hook.report()["compression_ratio"]["wire"]
        print(f"mean loss {loss:.4f}, {ratio:.0f} times fewer bytes on the wire")


if __name__ == "__main__":
    main()
