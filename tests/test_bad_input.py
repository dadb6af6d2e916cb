"""Every mistake of a user's: one line on standard error that says what and where, exit code 2, nothing written."""

import importlib.util
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.distributed.launch import CONFIG, here, launch
from wirebench.compose import run as train

PLAIN = '[model]\nname = "toy"\n[data]\nname = "{name}"\nroot = "{root}"\nbatch_size = 4\n{options}\n'


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Run a config, which must be refused with one line; returns it."""

    def line_of(*overrides: str, config: Path = CONFIG, folder: Path | None = None, size: int = 2) -> str:
        target = tmp_path / "run" if folder is None else folder
        code = here(size, [config, f"output.dir={target}", *overrides])
        said = capsys.readouterr()
        assert code == 2, said
        assert said.err.startswith("error: ") and said.err.count("\n") == 1 and said.err.endswith("\n"), said.err
        assert not (tmp_path / "run").exists()
        return said.err

    return line_of


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["modl.name=toy"], "modl: no such section; did you mean 'model'?"),
        (["train.max_step=3"], "train.max_step: no such key; did you mean 'max_steps'?"),
        (["train.max_steps=ten"], "train.max_steps: needs a whole number, got 'ten'"),
        (["optimizer.lr=-0.1"], "optimizer.lr: needs at least 0, got -0.1"),
        (["compressor.name=topp"], "compressor.name: no compressor 'topp'; did you mean 'topk'?"),
        (["model.name=nowhere.at_all"], "model.name: no module 'nowhere.at_all' can be imported"),
        (["--compressor.name=dgc"], "--compressor.name=dgc: settings are given without dashes: compressor.name=dgc"),
        (["-optimizer.lr", "0.1"], "-optimizer.lr: settings are given without dashes: optimizer.lr=VALUE"),
        (["compressor.densty=0.1"], "compressor.densty: 'topk' has no such option; did you mean 'density'?"),
        (["compressor.density=2"], "compressor: density lies in (0, 1], got 2"),
        (["collective.name=ring", "collective.x=1"], "collective.x: 'ring' has no such option"),
        (["train.accumulation=3"], "train.accumulation: 3 does not divide data.batch_size = 8"),
        (
            ["data.batch_size=64"],
            "data.batch_size: 64 images x 2 workers are 128 a step, but the training split",
        ),
        (["scheduler.name=native"], "scheduler.name: 'native' is the engine's own synchroniser"),
        (["train.resume=auto", "output.dir="], "train.resume: auto looks into output.dir; set that too"),
        (["train.resume=/no/such/run"], "train.resume: /no/such/run: no checkpoint there"),
        (["engine.name=torch"], "engine.name: 'torch' with 2 workers needs its launcher: torchrun --nproc-per-node 2"),
        (["engine.name=horovod"], "engine.name: 'horovod' with 2 workers needs its launcher: horovodrun -np 2 python"),
        (["engine.threads=1099511627776"], "engine.threads: needs at most 4096, got 1099511627776"),
        (["model.name=compressors.topk"], "model.name: "),
        (["data.name=synthetic", "data.num_classes=2147483648"], "out of memory"),
        (["compressor.density=" + "[" * 100_000], "compressor.density: "),
        (["network.dilation=2"], "network.dilation: only a replayed model can be slowed down"),
        (["train.max_steps"], "'train.max_steps': an override is section.key=value"),
    ],
    ids=lambda value: value[-1][:80] if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(overrides: list[str], words: str, refused) -> None:
    assert words in refused(*overrides)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"[model\nname = 3", "not valid TOML: "),
        (b"[model]\nname = 'toy'\nname = 'lenet'", "not valid TOML: "),
        (b"\xff\xfe\x00", "not a text file"),
        (b"model = " + b"[" * 100_000, "not valid TOML: it is nested too deeply"),
        (b"model = 3", "model: is a section ([model] with keys below it), got 3"),
    ],
)
def test_a_config_that_cannot_be_read(content: bytes | None, words: str, refused, tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    if content is not None:
        config.write_bytes(content)
    assert words in refused(config=config)


def test_a_plugin_that_cannot_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--list", "topk", "tokp"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("error: --list: nothing is called 'tokp'; did you mean 'topk'?")
    assert train.main(["--list", "topk"]) == 0
    assert capsys.readouterr().out.startswith("compressor topk\n")


def test_an_engine_that_is_not_installed(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "horovod" else find(name))
    assert "engine.name: horovod is not installed; `make setup` in a clone builds it" in refused("engine.name=horovod")


def test_a_gpu_that_is_not_there(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "engine.device: 'cuda', but no GPU can be used here" in refused("engine.device=cuda")


def test_a_launcher_without_an_address(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert "RANK and WORLD_SIZE are set, but no good MASTER_ADDR" in refused(size=1)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_decoded(workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found in the middle of a run, which says so and ends; with a decoding process and without."""
    images = tmp_path / "images"
    for split in ("train", "val"):
        for number in range(8):
            path = images / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), (30 * number, 80, 120)).save(path)
    broken = images / "train" / "b" / "5.png"
    broken.write_bytes(broken.read_bytes()[:60])
    config = tmp_path / "images.toml"
    config.write_text(PLAIN.format(name="imagefolder", root=images, options=f"workers = {workers}\nimage_size = 16"))
    assert here(2, [config, f"output.dir={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: data.root: {broken} is not a readable image: "), said
    assert said.count("\n") == 1


def test_as_a_user_sees_it(tmp_path: Path) -> None:
    """Once through the real command."""
    ended = launch("local", 2, [CONFIG, "compressor.name=topp"], tmp_path)
    assert ended.code == 2
    assert ended.err.startswith("error: compressor.name: no compressor 'topp'; did you mean 'topk'? there is: ")
    assert ended.err.count("\n") == 1
    assert len(ended.out.splitlines()) == 2, "what starts, and the import of torch"
