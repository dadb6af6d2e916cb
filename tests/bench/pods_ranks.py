"""What `test_bench_pods.py` runs on each of four ranks: small trainings in two pods, one after the other.

The first argument is a folder for the records; rank 0 prints each record's name when its training is over.
"""

import dataclasses
import sys
from pathlib import Path

from wirebench.bench.pods import PodsRun, refuse
from wirebench.comm.engine import start
from wirebench.comm.launch import end_process
from wirebench.compose.resolve import PLAIN_SGD, resolve
from wirebench.config import loader

SMALL = (
    "model.depth=1", "model.width=16", "model.context=16", "data.length=16", "data.train_bytes=20_000",
    "data.name=text", "data.root=docs", "data.suffix=.md",
    "train.warmup_steps=2", "train.max_steps=7", "output.tensorboard=false",
)  # fmt: skip
FEW, LOCAL = ("compressor.name=topk", "compressor.density=0.05"), ("scheduler.name=outer", "scheduler.every=2")
RUNS: dict[str, tuple[str, ...]] = {
    "native": ("scheduler.name=builtin",),
    "none": ("compressor.name=none",),
    "single": ("compressor.name=none", "scheduler.name=single"),
    "topk": FEW,
    "demo": ("compressor.name=demo", *PLAIN_SGD, "optimizer.lr=1e-3"),
    "local": LOCAL,
    "diverged": ("optimizer.lr=1e30", "optimizer.schedule=constant"),
}


def main() -> None:
    engine = None
    for name, words in RUNS.items():
        given = [*SMALL, *words, f"output.dir={Path(sys.argv[1]) / name}"]
        settings = resolve(loader.load("configs/tables/pods_gpt.toml", given))
        refuse(settings)
        engine = engine or start(dataclasses.replace(settings.engine, name="torch"), None)
        code = PodsRun(settings, 2, engine, untested=False).train()
        assert code == (3 if name == "diverged" else 0), (name, code)
        if engine.is_first:
            print(f"over: {name}", flush=True)
    end_process(0)


if __name__ == "__main__":
    main()
