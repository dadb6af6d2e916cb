"""Cases of what people bring along: measured cells, and data sets."""

import os
import random
import shutil
from pathlib import Path

from tests.data.samples import write_cifar10
from tests.distributed.launch import CONFIG, ROOT
from tests.fuzz import mutate
from tests.fuzz.case import SHORT, Case
from wirebench.utils.parsing import json_of

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
