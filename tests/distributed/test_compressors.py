"""Every compressor trains the main job on real processes, and to the same losses as in one process."""

from pathlib import Path

import pytest

from tests.distributed.ends import losses, record
from tests.distributed.forked import finish
from tests.distributed.launch import ROOT, here
from wirebench import compressors
from wirebench.compose.resolve import optimizer_for

BASE = [
    ROOT / "configs/smoke.toml", "train.eval_every=0", "collective.name=tree", "output.tensorboard=false",
    "output.health_every=3",
]  # fmt: skip


def settings(name: str) -> list[str]:
    """A compressor at a density that leaves ResNet-20 something to send."""
    density = ["compressor.density=0.01"] if "density" in compressors.PLUGINS.options(name) else []
    whole = ["scheduler.name=sync_easgd"] if compressors.PLUGINS.load(name).whole_model else []
    return [f"compressor.name={name}", *density, *whole, *optimizer_for(name)]


def agree(engine: str, size: int, name: str, folder: Path, steps: int = 8) -> None:
    """The engine's losses, and its readings of the compression, are the local engine's."""
    chosen = [*BASE, *settings(name), f"train.max_steps={steps}", f"train.warmup_steps={steps // 2}"]
    finish(engine, size, [*chosen, f"output.dir={folder / engine}"], folder / "logs")
    assert here(size, [*chosen, f"output.dir={folder / 'local'}"]) == 0
    assert len(losses(folder / engine)) == steps
    # The processes and this one may sum with other numbers of threads.
    assert losses(folder / engine) == pytest.approx(losses(folder / "local"), rel=1e-3)
    theirs, ours = (record(folder / place) for place in (engine, "local"))
    assert theirs["bytes_per_step"]["wire_mean"] == pytest.approx(ours["bytes_per_step"]["wire_mean"], rel=0.02)
    assert theirs["health"].keys() == ours["health"].keys()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("engine", "size", "name"),
    [("torch", 2, "iwp"), ("horovod", 3, "oktopk")],
)
def test_engines_agree(engine: str, size: int, name: str, tmp_path: Path) -> None:
    agree(engine, size, name, tmp_path, steps=4)


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("name", "engine"), [(name, ("torch", "horovod")[place % 2]) for place, name in enumerate(compressors.available())]
)
def test_every_compressor_trains_the_main_job(engine: str, name: str, tmp_path: Path) -> None:
    agree(engine, 3, name, tmp_path)
