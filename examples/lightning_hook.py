"""Lightning with a compressor of the suite: its DDP strategy takes a communication hook.

On a CPU Lightning 2.6 leaves the strategy's hook out without a word, so there a callback registers it.

torchrun --nproc-per-node 2 examples/lightning_hook.py
"""

import argparse
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import compressors
import wirebench


class Classifier(lightning.LightningModule):
    """Two layers on scikit-learn's digits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Lightning's."""
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Lightning's."""
        return torch.optim.AdamW(self.parameters(), 3e-3)


class Hooked(lightning.Callback):
    """Registers a communication hook once the model is wrapped."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Lightning's."""
        trainer.strategy.model.register_comm_hook(None, self.hook)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    digits = load_digits()
    dataset = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))

    hook = wirebench.comm_hook(compressors.build("topk", density=0.01))
    on_gpu = torch.cuda.is_available()
    trainer = lightning.Trainer(
        accelerator="gpu" if on_gpu else "cpu", devices=2, max_epochs=options.epochs, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        strategy=DDPStrategy(ddp_comm_hook=hook) if on_gpu else "ddp", callbacks=[] if on_gpu else [Hooked(hook)],
    )  # fmt: skip
    trainer.fit(Classifier(), DataLoader(dataset, batch_size=32, shuffle=True))
    if trainer.is_global_zero:
        ratio = hook.report()["compression_ratio"]["wire"]
        print(f"loss {trainer.callback_metrics['loss'].item():.4f}, {ratio:.0f} times fewer bytes on the wire")


if __name__ == "__main__":
    main()
