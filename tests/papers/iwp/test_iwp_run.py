"""wirebench study iwp run: which runs are started, in which order, and what is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from papers.iwp.run import PARTS
from papers.iwp.variants import NETWORK, VARIANTS
from tests.flexreduce import run_record
from tests.papers import verb
from wirebench.record import recorded

pytestmark = pytest.mark.sampled(3)


class Fake(verb.Trains):
    """Notes how many images it was given."""

    def __init__(self) -> None:
        super().__init__(self.made)
        self.images: set[int] = set()

    def made(self, told: Mapping[str, str]) -> dict[str, Any]:
        """A record of whatever it is."""
        root = Path(told["data.root"])
        if (root / "train").is_dir():
            self.images.add(sum(path.is_file() for path in root.glob("train/*/*")))
        return run_record("2+2")


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    """Flags that name a CIFAR-10 and a folder of images in two classes."""
    cifar, images = tmp_path / "cifar", tmp_path / "images"
    (cifar / "cifar-10-batches-bin").mkdir(parents=True)
    for part in ("train", "val"):
        for name in "ab":
            (images / part / name).mkdir(parents=True)
            for number in range(200):
                (images / part / name / f"{number}.jpg").touch()
    return ["--data", str(cifar), "--images", str(images)]


def run(out: Path, *arguments: str) -> tuple[int, Fake]:
    fake = Fake()
    return verb.run("iwp")(["--out", str(out), *arguments], fake), fake


def test_runs_come_in_order_and_are_not_made_twice(tmp_path: Path, data: list[str]) -> None:
    out = tmp_path / "out"
    code, fake = run(out, *data, "--turns", "2", "--steps", "3")
    assert code == 0
    assert [name.partition("/")[0] for name in fake.started] == [
        *["alexnet"] * len(VARIANTS), *["resnet50"] * len(VARIANTS), *["network"] * 2 * len(NETWORK),
        *["cifar"] * len(VARIANTS),
    ]  # fmt: skip
    assert fake.started[0] == "alexnet/fixed_0.05-0"
    network = [name for name in fake.started if name.startswith("network")]
    assert network[:4] == ["network/dense-0", "network/fixed_0.05-0", "network/fixed_0.1-0", "network/dense-1"]
    assert all("cluster" in command for command in fake.commands if "network" in " ".join(command))
    waiting = [name for name, command in zip(fake.started, fake.commands, strict=True)
               if "compressor.waiting=true" in command]  # fmt: skip
    assert len(waiting) == len(VARIANTS) - 2 and all(name.startswith("cifar/") for name in waiting)
    assert fake.images == {320, 160}, "ten steps of 4 workers, with 8 images and with 4"
    assert not (out / ".images").exists()
    file = out / recorded.RUNS
    file.write_text("".join(line for line in file.read_text().splitlines(True) if '"cifar/terngrad-0"' not in line))
    assert run(out, *data, "--turns", "2", "--steps", "3")[1].started == ["cifar/terngrad-0"]
    few = run(tmp_path / "few", *data, "--turns", "1", "--methods", "dense", "terngrad")[1]
    assert few.started == ["alexnet/terngrad-0", "resnet50/terngrad-0", "network/dense-0", "cifar/terngrad-0"]


def test_what_has_no_images_is_left_out_and_named(
    tmp_path: Path, data: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, fake = run(tmp_path / "out", *data[:2], "--turns", "1")
    assert code == 0
    assert {name.partition("/")[0] for name in fake.started} == {"network", "cifar"}
    said = capsys.readouterr().err
    assert "left out without --images: alexnet" in said and "resnet50" in said


def test_every_part_has_its_config() -> None:
    assert all(Path(part.config).is_file() for part in PARTS.values())
