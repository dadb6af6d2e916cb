"""Models and data that know nothing of the suite, by dotted path: a class, a function, tokens in place of images."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.verbs import verb
from tests.distributed.launch import PLUGINS
from wirebench.compose import run as train

TOKENS, SUCCESSOR = "data.name=mine.letters.Counting", "model.name=mine.letters.Successor"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))


def run(folder: Path, *words: str) -> int:
    few = ["data.batch_size=4", "engine.workers=2", "output.tensorboard=false", f"output.dir={folder}"]
    return train.main(["configs/smoke.toml", "train.epochs=5", *few, *words])


def recorded(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "record.json").read_text())
    return record


def test_a_model_of_tokens_learns_from_data_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [SUCCESSOR, "model.width=12", "compressor.name=topk", "compressor.density=0.2"]
    assert run(tmp_path, TOKENS, *options) == 0
    record = recorded(tmp_path)
    assert record["final"]["top1"] == 1
    assert record["samples"] == {"train": 64, "test": 16, "unit": "samples"}
    assert record["parameters"] == 11 * 12 + 12 * 11 + 11
    said = capsys.readouterr().out
    assert "samples/s" in said and "images/s" not in said
    assert verb("show")([str(tmp_path)]) == 0
    assert "samples/s [p10 - p90]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "more"), [("mine.letters.small", []), ("torchvision.models.shufflenet_v2_x0_5", ["model.num_classes=10"])]
)
def test_a_function_makes_a_model(name: str, more: list[str], tmp_path: Path) -> None:
    data = TOKENS if name.startswith("mine") else "data.name=digits"
    assert run(tmp_path, data, f"model.name={name}", "train.max_steps=2", *more) == 0
    assert recorded(tmp_path)["config"]["model"]["name"] == name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([TOKENS, "model.name=resnet18"], "'resnet18' takes images, and 'mine.letters.Counting' has none"),
        (["data.name=digits", SUCCESSOR], "cannot be trained on what data.name = 'digits' has"),
        (
            ["data.name=digits", "model.name=torchvision.models.shufflenet_v2_x0_5", "model.num_classes=10",
             "train.accumulation=4"],
            "cannot be trained on what data.name = 'digits' has, float32 of shape (1, 3, 8, 8): Expected more than 1",
        ),
        ([TOKENS, "model.name=mine.letters.Nothing"], "module 'mine.letters' has no 'Nothing'"),
        ([TOKENS, "model.name=mine.letters.small", "model.width=3"], "'mine.letters.small' has no such option"),
        ([TOKENS, SUCCESSOR, "train.channels_last=true"], "train.channels_last"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "run", *words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()
