"""Lightning with a compressor of the suite: its DDP strategy takes a communication hook.

On a CPU Lightning 2.6 silently ignores the strategy's hook, so there a callback registers it.

torchrun --nproc-per-node 2 examples/lightning_hook.py
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wirebench
from wirebench import compressors


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


class Kept(lightning.Callback):
    """Saves each rank's compressor beside Lightning's checkpoint, and loads it when a run resumes.

    Residuals differ between ranks, and Lightning writes only rank 0's checkpoint.
    """

    def __init__(self, hook: Any, folder: Path, register: bool) -> None:
        self.hook, self.folder, self.register = hook, folder, register

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Lightning's; its strategy has wrapped the model by now."""
        if self.register:
            trainer.strategy.model.register_comm_hook(None, self.hook)
        if trainer.ckpt_path:
            self.hook.load_state_dict(torch.load(self._file(trainer)))

    def on_save_checkpoint(self, trainer: lightning.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        """Lightning's, on every rank."""
        torch.save(self.hook.state_dict(), self._file(trainer))

    def _file(self, trainer: lightning.Trainer) -> Path:
        return self.folder / f"hook-{trainer.global_rank}.pt"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--folder", type=Path, help="of a checkpoint: written at the end, and gone on from if it is there"
    )
    options = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    digits = load_digits()
    dataset = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))

    hook = wirebench.comm_hook(compressors.build("topk", density=0.01))
    on_gpu = torch.cuda.is_available()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    saved = folder / "last.ckpt"
    trainer = lightning.Trainer(
        accelerator="gpu" if on_gpu else "cpu", devices=2, max_epochs=options.epochs, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        strategy=DDPStrategy(ddp_comm_hook=hook) if on_gpu else "ddp",
        callbacks=[Kept(hook, folder, register=not on_gpu)],
    )  # fmt: skip
    going_on = str(saved) if saved.exists() else None
    trainer.fit(Classifier(), DataLoader(dataset, batch_size=32, shuffle=True), ckpt_path=going_on)
    trainer.save_checkpoint(saved)
    if trainer.is_global_zero:
        ratio = hook.report()["compression_ratio"]["wire"]
        print(f"loss {trainer.callback_metrics['loss'].item():.4f}, {ratio:.0f} times fewer bytes on the wire")


if __name__ == "__main__":
    main()
