"""Configs: files, overrides, types, limits, and the dump that repeats a run."""

import dataclasses
from pathlib import Path

import pytest

from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError

TEXT = """
[model]
name = "resnet_cifar"
depth = 32

[compressor]
name = "topk"
density = 1
warmup = [1, 0.25]

[optimizer]
lr = 1
schedule = "step"
milestones = [10, 20.5]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "trial.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(table: dict) -> str:
    with pytest.raises(UserError) as caught:
        loader.from_dict(table)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_file_fills_the_sections(tmp_path):
    loaded = loader.load(write(tmp_path, TEXT))
    assert loaded.name == "trial"
    assert loaded.model == loader.ModelConfig("resnet_cifar", {"depth": 32})
    assert loaded.compressor.warmup == (1.0, 0.25)
    assert loaded.compressor.options == {"density": 1}
    assert loaded.optimizer.milestones == (10.0, 20.5)
    numbers = (loaded.optimizer.lr, *loaded.optimizer.milestones)
    assert {type(each) for each in numbers} == {float}, "also where the file has whole numbers"
    assert loaded.train == loader.TrainConfig()


def test_a_table_may_name_itself(tmp_path):
    assert loader.load(write(tmp_path, 'name = "other"\n')).name == "other"
    assert loader.from_dict({}, "third").name == "third"
    assert refusal({"name": 3}) == "name: needs a string, got 3"


def test_a_dump_reads_back_as_the_same_config(tmp_path):
    overrides = ["data.shape=[3, 8, 8]", "train.seed=-7", 'output.dir="a b/\u00e9"', "network.interface=lo"]
    first = loader.load(write(tmp_path, TEXT), overrides)
    copy = tmp_path / "copy.toml"
    copy.write_text(loader.dump(first), encoding="utf-8")
    assert loader.load(copy) == first
    assert loader.from_dict(loader.to_dict(first)) == first
    assert loader.dump(loader.load(copy)) == loader.dump(first)


def test_a_dump_writes_every_key_out():
    tables = loader.to_dict(loader.Config())
    for section, kind in loader.SECTIONS.items():
        assert tables[section].keys() == {f.name for f in dataclasses.fields(kind)} - {"options"}


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("train.max_steps=20", "train", "max_steps", 20),
        ("train.channels_last=true", "train", "channels_last", True),
        ("optimizer.lr=1e-3", "optimizer", "lr", 0.001),
        ("optimizer.lr=2", "optimizer", "lr", 2.0),
        ("optimizer.milestones=[1, 2]", "optimizer", "milestones", (1.0, 2.0)),
        ("model.name=lenet", "model", "name", "lenet"),
        ('model.name="lenet"', "model", "name", "lenet"),
        ("output.dir=/tmp/a=b", "output", "dir", "/tmp/a=b"),
        ("output.dir=", "output", "dir", ""),
        ("output.dir=2026", "output", "dir", "2026"),
        ("train.resume=2026-01-01", "train", "resume", "2026-01-01"),
    ],
)
def test_overrides_are_toml_or_plain_text(tmp_path, override, section, key, value):
    loaded = loader.load(write(tmp_path, TEXT), [override])
    found = getattr(getattr(loaded, section), key)
    assert found == value
    assert type(found) is type(value)


def test_an_override_replaces_the_file(tmp_path):
    loaded = loader.load(write(tmp_path, TEXT), ["model.depth=56", "model.extra=[1, 2]"])
    assert loaded.model.options == {"depth": 56, "extra": (1, 2)}


def test_values_at_their_limits_are_taken():
    table = {
        "data": {"batch_size": 1},
        "compressor": {"warmup": [1, 1e-9]},
        "train": {"label_smoothing": 1, "keep": 1, "epochs": 1},
        "network": {"dilation": 10},
    }
    assert loader.from_dict(table).network.dilation == 10.0


def test_naming_another_plugin_drops_the_options_of_the_files_one_and_keeps_the_section(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('[compressor]\nname = "topk"\ndensity = 0.5\ndense_below = 64\n')
    other = loader.load(path, ["compressor.rank=2", "compressor.name=powersgd"]).compressor
    assert (other.name, other.dense_below, dict(other.options)) == ("powersgd", 64, {"rank": 2})
    same = loader.load(path, ["compressor.name=topk"]).compressor
    assert dict(same.options) == {"density": 0.5}


BASE = """name = "base"
[model]
name = "resnet_cifar"
depth = 20
[compressor]
name = "topk"
density = 0.5
dense_below = 64
[optimizer]
lr = 0.3
momentum = 0.9
[expected]
top1 = 0.9
"""


def test_a_config_extends_another_and_keeps_what_it_does_not_give(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "base.toml").write_text(BASE)
    own = tmp_path / "below/own.toml"
    own.write_text(
        'extends = "../base.toml"\n'
        '[compressor]\nname = "powersgd"\nrank = 2\n[optimizer]\nlr = 0.1\n[train]\nepochs = 3\n'
    )
    config = loader.load(own)
    assert (config.name, config.expected.top1, config.train.epochs) == ("own", 0.0, 3)
    assert (config.model.name, dict(config.model.options)) == ("resnet_cifar", {"depth": 20})
    assert (config.compressor.name, config.compressor.dense_below) == ("powersgd", 64)
    assert dict(config.compressor.options) == {"rank": 2}, "the options of the base's plugin stay there"
    assert (config.optimizer.lr, config.optimizer.momentum) == (0.1, 0.9)
    assert loader.load(own, ["optimizer.lr=0.2"]).optimizer.lr == 0.2
    # A run's folder keeps the whole, which extends nothing.
    (tmp_path / "kept.toml").write_text(loader.dump(config))
    assert loader.load(tmp_path / "kept.toml") == config


def test_a_run_can_be_extended_with_another_compressor(tmp_path: Path) -> None:
    """DGC took the momentum from the optimizer; what extends the run without DGC has it back."""
    (tmp_path / "base.toml").write_text(BASE)
    ran = resolve(loader.load(tmp_path / "base.toml", ["compressor.name=dgc"]))
    (tmp_path / "ran.toml").write_text(loader.dump(ran))
    (tmp_path / "own.toml").write_text('extends = "ran.toml"\n[compressor]\nname = "none"\n')
    assert (ran.optimizer.momentum, loader.load(tmp_path / "own.toml").optimizer.momentum) == (0.0, 0.9)


@pytest.mark.parametrize(
    ("overrides", "top1"),
    [
        ([], 0.9), (["output.dir=x", "data.root=y", "train.seed=3"], 0.9), (["compressor.density=0.1"], 0.0),
        (["train.seed=3", "optimizer.lr=1.0"], 0.0), (["optimizer.lr=1.0", "expected.top1=0.8"], 0.8),
    ],
)  # fmt: skip
def test_what_a_file_expects_is_of_its_own_run(overrides: list[str], top1: float, tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(BASE)
    assert loader.load(tmp_path / "base.toml", overrides).expected.top1 == top1
