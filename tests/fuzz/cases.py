"""What is damaged, and the command that meets it. Each kind makes its case from a random generator alone."""

import json
import os
import random
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import tomli_w

from tests.data.samples import write_cifar10, write_images
from tests.distributed.launch import CONFIG, ROOT
from tests.fuzz import mutate
from wirebench.utils.parsing import json_of

WHOLE = (str(CONFIG), "engine.workers=2", "train.max_steps=10")
"""How the run that is shared goes on to its end."""
SHORT = ("engine.workers=2", "train.max_steps=4", "output.tensorboard=false")


class Case(NamedTuple):
    """A command line, and what it means for its end.

    run    folder of the run, which has a record where the command says that all went well
    whole  folder of an unbroken run: one that went well ended like it
    """

    program: str
    words: list[str]
    run: Path | None = None
    whole: Path | None = None


Maker = Callable[[random.Random, Path, Path], Case]
"""From chance, an empty folder of its own, and the folder of what all cases share."""


REDUCED = ROOT / "results/flexreduce/cells/2+2.jsonl"
COMPRESSED = ROOT / "results/cpu-2core/compressors/cells.jsonl"
RANKING = ("--trace", "resnet20_gtx1080ti", "--network", "1gbe", "--workers", "4", "--compressors", "fp16", "topk")


def measurements(chance: random.Random, folder: Path, shared: Path) -> Case:
    """A file of cells, in each of the tools that read one."""
    verb = chance.choice(("fit", "plot-collectives", "plot-compressors", "advise"))
    source = REDUCED if verb in ("fit", "plot-collectives") else COMPRESSED
    path = folder / "cells.jsonl"
    path.write_bytes(_cells(source, chance))
    words = {
        "fit": ["fit", str(path), "--out", str(folder / "fitted.toml")],
        "plot-collectives": ["bench", "plot-collectives", str(path), "--out", str(folder / "figures")],
        "plot-compressors": ["bench", "plot-compressors", str(path), "--out", str(folder / "figures")],
        "advise": ["advise", *RANKING, "--schedulers", "fused", "--rates", str(path)],
    }
    return Case("wirebench", words[verb])


def _cells(source: Path, chance: random.Random) -> bytes:
    """The header and a few cells, damaged in what a line says, in its bytes, or by lines that are not there."""
    header, *lines = source.read_bytes().splitlines()
    kept = [header, *chance.sample(lines, min(len(lines), 8))]
    place = chance.randrange(len(kept))
    match chance.randrange(4):
        case 0:
            return mutate.raw(b"\n".join(kept) + b"\n", chance)
        case 1:
            del kept[chance.randrange(len(kept)) :]
        case _:
            kept[place] = mutate.as_json(json_of(kept[place]), chance)
    return b"\n".join(kept) + b"\n"


def data(chance: random.Random, folder: Path, shared: Path) -> Case:
    """A folder of CIFAR-10's batches, or of texts."""
    make, words = chance.choice(((_batches, CIFAR), (_texts, TEXTS)))
    root = folder / "data"
    make(chance, root, shared)
    if chance.random() < 0.1:
        shutil.rmtree(root)
        root.write_bytes(b"a file")
    settings = [*SHORT, f"output.dir={folder / 'run'}", f"data.root={root}", *words]
    return Case("train", [str(CONFIG), *settings], folder / "run")


CIFAR = ("model.name=lenet", "data.name=cifar10", "data.size=32", "data.batch_size=2", "train.eval_every=0")
TEXTS = ("model.name=gpt", "model.depth=1", "model.width=32", "data.name=text", "data.length=32", "data.batch_size=2")


def _batches(chance: random.Random, root: Path, shared: Path) -> None:
    """CIFAR-10's files, of which one or two are damaged; the others are links to those that all cases share."""
    sound = shared / "cifar10"
    if not sound.exists():
        write_cifar10(sound)
    root.mkdir()
    for path in sound.iterdir():
        os.link(path, root / path.name)
    for path in chance.sample(sorted(root.iterdir()), chance.randint(1, 2)):
        content = bytearray(path.read_bytes())
        path.unlink()
        match chance.randrange(6):
            case 0:
                os.mkfifo(path)
            case 1:
                path.mkdir()
            case 2:
                path.symlink_to(path)
            case 3:
                path.write_bytes(content[: chance.randrange(len(content))])
            case 4:
                continue
            case _:
                for _ in range(chance.randint(1, 50)):
                    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
                path.write_bytes(content)


def _texts(chance: random.Random, root: Path, shared: Path) -> None:
    """A folder of text files and of things that are none."""
    root.mkdir()
    for number in range(chance.randint(0, 4)):
        path = root / f"{number}.txt"
        match chance.randrange(7):
            case 0:
                os.mkfifo(path)
            case 1:
                path.mkdir()
            case 2:
                path.symlink_to(chance.choice((path, root, root / "nowhere")))
            case 3:
                path.write_bytes(b"")
            case 4:
                path.write_bytes(chance.randbytes(chance.choice((1, 31, 33, 40_000))))
            case _:
                path.write_bytes(mutate.raw(b"a text of some length\n" * 4_000, chance))


def config(chance: random.Random, folder: Path, shared: Path) -> Case:
    """A config with other values, keys or bytes."""
    text = CONFIG.read_text()
    plain = tomllib.loads(text)
    plain |= {"scheduler": {"name": "fused"}, "collective": {"name": "ring"}, "network": {"topology": "1+1"}}
    plain["output"] |= {"dir": "x"}
    path = folder / "config.toml"
    if chance.random() < 0.7:
        path.write_text(tomli_w.dumps(mutate.table(plain, chance, toml=True)))
    else:
        path.write_bytes(mutate.raw(tomli_w.dumps(plain).encode(), chance))
    return Case("train", [str(path), *SHORT, f"output.dir={folder / 'run'}"], folder / "run")


def overrides(chance: random.Random, folder: Path, shared: Path) -> Case:
    """Settings on the command line."""
    keys = chance.choices(KEYS, k=chance.randint(1, 3))
    words = {f"{key}": f"{key}={_shown(mutate.value(chance))}" for key in keys if key not in PINNED}
    return Case("train", [str(CONFIG), *SHORT, f"output.dir={folder / 'run'}", *words.values()], folder / "run")


PINNED = {word.partition("=")[0] for word in SHORT} | {"output.dir"}
KEYS = [
    *(f"{section}.name" for section in ("model", "data", "compressor", "scheduler", "collective")), "optimizer.name",
    "engine.name",
    "compressor.density", "compressor.warmup", "data.batch_size", "data.root", "data.num_classes", "data.image_size",
    "engine.threads", "engine.timeout_seconds", "engine.device", "optimizer.lr", "optimizer.momentum",
    "optimizer.schedule", "train.epochs", "train.accumulation", "train.seed", "train.precision", "train.resume",
    "train.keep", "train.checkpoint_every_steps", "network.topology", "network.dilation", "network.straggler",
    "output.health_every",
    "output.trace_steps", "model.depth", "model.width", "a.b", "train", "", ".", "train.no_such",
]  # fmt: skip


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def trace(chance: random.Random, folder: Path, shared: Path) -> Case:
    """A model's trace."""
    path = folder / "trace.json"
    content = json.loads((ROOT / "configs/traces/resnet20_k80.json").read_text())
    path.write_bytes(mutate.as_json(content, chance))
    words = ["simulate", "--trace", str(path), "--network", "1gbe", "--workers", "4", "--schedulers", "wfbp", "fused"]
    return Case("wirebench", words)


def profile(chance: random.Random, folder: Path, shared: Path) -> Case:
    """A profile of PyTorch's, or a log of B-Caffe's."""
    out = ["--model", "m", "--batch", "4", "--out", str(folder / "out.json")]
    if chance.random() < 0.5:
        path = folder / "trace.json"
        path.write_bytes(mutate.as_json(PROFILE, chance))
    else:
        path = folder / "tmp4comm.log"
        path.write_bytes(mutate.raw(BCAFFE.encode(), chance))
    return Case("wirebench", ["trace", "import", str(path), *out])


_SPAN = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
PROFILE = {
    "deviceProperties": [{"name": "NVIDIA H100"}],
    "traceEvents": [
        {**_SPAN, "name": "autograd::engine::evaluate_function: AddmmBackward0", "ts": 10.0, "dur": 5.0},
        {**_SPAN, "name": "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "ts": 16.0,
         "dur": 1.0, "args": {"Input Dims": [[10, 10]]}},
    ],
}  # fmt: skip
BCAFFE = "\n".join(f"[{place}, {100 * place}, {3.5 * place}, {9.25 * place}]" for place in range(1, 20)) + "\n"


def topology(chance: random.Random, folder: Path, shared: Path) -> Case:
    """A cluster's file."""
    source = chance.choice(sorted((ROOT / "configs/topologies").glob("*.toml")))
    path = folder / "cluster.toml"
    if chance.random() < 0.6:
        path.write_text(tomli_w.dumps(mutate.table(tomllib.loads(source.read_text()), chance, toml=True)))
    else:
        path.write_bytes(mutate.raw(source.read_bytes(), chance))
    return Case("wirebench", ["topology", str(path)])


def record(chance: random.Random, folder: Path, shared: Path) -> Case:
    """A finished run: its record, or the log of its steps, in each of the tools that read them."""
    run = folder / "run"
    shutil.copytree(shared / "run", run, ignore=shutil.ignore_patterns("checkpoints"))
    if chance.random() < 0.8:
        content = json.loads((run / "record.json").read_text())
        (run / "record.json").write_bytes(mutate.as_json(content, chance))
    else:
        (run / "steps.jsonl").write_bytes(mutate.raw((run / "steps.jsonl").read_bytes(), chance))
    return Case("wirebench", [*chance.choice((["show"], ["show", "--all"], ["diagnose"])), str(run)])


def table(chance: random.Random, folder: Path, shared: Path) -> Case:
    """A folder of runs, one of them damaged, as a table."""
    record(chance, folder, shared)
    shutil.copytree(shared / "run", folder / "sound", ignore=shutil.ignore_patterns("checkpoints"))
    return Case("wirebench", ["table", str(folder)])


def checkpoint(chance: random.Random, folder: Path, shared: Path) -> Case:
    """Files of a checkpoint with other bits, of any kind or none."""
    run = folder / "run"
    shutil.copytree(shared / "run", run)
    files = sorted(path for path in (run / "checkpoints").rglob("*") if path.is_file())
    for path in chance.sample(files, chance.randint(1, 2)):
        match chance.randrange(4):
            case 0:
                path.write_bytes(mutate.raw(path.read_bytes(), chance))
            case 1:
                path.unlink()
            case _:
                content = bytearray(path.read_bytes())
                for _ in range(chance.randint(1, 8)):
                    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
                path.write_bytes(content)
    return Case("train", [*WHOLE, f"output.dir={run}", "train.resume=auto"], run, shared / "whole")


def bookkeeping(chance: random.Random, folder: Path, shared: Path) -> Case:
    """What a run that goes on finds beside its checkpoints."""
    run = folder / "run"
    shutil.copytree(shared / "run", run)
    path = run / chance.choice(("steps.jsonl", "record.json", "config.toml", "trace.json"))
    if path.exists():
        path.write_bytes(mutate.raw(path.read_bytes(), chance))
    return Case("train", [*WHOLE, f"output.dir={run}", "train.resume=auto"], run)


def images(chance: random.Random, folder: Path, shared: Path) -> Case:
    """A folder of images: damaged files, and things that are no files."""
    root = folder / "images"
    write_images(root)
    files = sorted(path for path in root.rglob("*.jpg"))
    for path in chance.sample(files, chance.randint(1, 3)):
        match chance.randrange(6):
            case 0:
                path.unlink()
                os.mkfifo(path)
            case 1:
                path.unlink()
                path.mkdir()
            case 2:
                path.unlink()
                path.symlink_to(path)
            case 3:
                shutil.rmtree(path.parent)
                path.parent.write_bytes(b"")
                break
            case _:
                path.write_bytes(mutate.raw(path.read_bytes(), chance))
    if chance.random() < 0.1:
        shutil.rmtree(root)
        root.write_bytes(b"a file")
    words = [*SHORT, f"output.dir={folder / 'run'}", "model.name=lenet", "data.name=imagefolder", f"data.root={root}"]
    words += ["data.batch_size=2", "data.image_size=32"]
    return Case("train", [str(CONFIG), *words], folder / "run")


MAKERS: dict[str, tuple[Maker, int]] = {
    "config": (config, 260),
    "overrides": (overrides, 240),
    "record": (record, 160),
    "table": (table, 60),
    "trace": (trace, 80),
    "profile": (profile, 60),
    "topology": (topology, 80),
    "checkpoint": (checkpoint, 60),
    "bookkeeping": (bookkeeping, 40),
    "images": (images, 40),
    "measurements": (measurements, 60),
    "data": (data, 40),
}
"""Each kind, and how many of it there are in a thousand and more."""
