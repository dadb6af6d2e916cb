"""What trains on a CPU trains on a GPU, to the same losses: compressors, schedules, NCCL, ranks that share a GPU."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from tests.distributed.ends import losses, record
from tests.distributed.launch import ROOT, here, launch
from tests.distributed.test_compressors import settings
from tests.helpers import CUDA
from wirebench import compressors, schedulers
from wirebench.compose.resolve import optimizer_for
from wirebench.gradient import flat
from wirebench.training.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    CUDA,
    pytest.mark.timeout(180),
]
STEPS = 5
BASE = [
    ROOT / "configs/smoke.toml", "model.depth=8", f"train.max_steps={STEPS}", "train.epochs=1", "train.eval_every=0",
    "train.warmup_steps=1", "output.tensorboard=false", "output.trace_steps=2", "optimizer.schedule=constant",
    "optimizer.lr=0.005",
]  # fmt: skip
DRAWS_THERE = {"int8", "iwp", "qsgd", "terngrad"}
"""They round at random by numbers that the device draws: others on each."""
IN_FP32 = {"NVIDIA_TF32_OVERRIDE": "0"}
"""Convolutions with ten bits of mantissa would be all that is seen."""

BY_VALUE = {
    "gs_sgd", "gtopk", "iblt", "iwp", "oktopk", "sketched_sgd", "threshold",
}  # fmt: skip
"""A message's length depends on values: these wait."""


BY_PLACE = {"acp_sgd", "iblt", "sketched_sgd"}
"""They hash an entry's place, or draw by it, and a GPU's layers begin elsewhere than a CPU's."""


@pytest.fixture(autouse=True)
def in_fp32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def on_schedule(name: str) -> list[str]:
    """A schedule, and what makes it exchange within a few steps."""
    return [f"scheduler.name={name}", *(["scheduler.every=2"] if name == "outer" else [])]


def agree(folder: Path, words: list[str], tolerance: float = 1e-3, base: Sequence[object] = BASE) -> None:
    """Losses on the GPU are those on the CPU, and the same to the bit when it runs again."""
    for name, device in (("cpu", "cpu"), ("cuda", "cuda"), ("again", "cuda")):
        told = [*base, *words, f"engine.device={device}", "engine.threads=1", f"output.dir={folder / name}"]
        assert here(2, told) == 0
    assert losses(folder / "again") == losses(folder / "cuda")
    assert losses(folder / "cuda") == pytest.approx(losses(folder / "cpu"), rel=tolerance)
    ours, theirs = record(folder / "cuda"), record(folder / "cpu")
    assert ours["bytes_per_step"]["wire_mean"] == pytest.approx(theirs["bytes_per_step"]["wire_mean"], rel=0.02)


def cuts() -> list[tuple[str, str]]:
    """Each compressor with few buckets and, unless it wants the whole model in one, with many."""
    names = compressors.available()
    return [(name, "fused") for name in names] + [
        (name, "wfbp") for name in names if not compressors.PLUGINS.load(name).whole_model
    ]


@pytest.mark.parametrize(("name", "schedule"), cuts())
def test_every_compressor_trains_alike_on_a_gpu(
    name: str, schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in BY_PLACE:
        monkeypatch.setattr(flat, "_step_of", lambda parameters: flat.ALIGNED_BYTES // parameters[0].element_size())
    updates = compressors.PLUGINS.load(name).makes_update
    slower = ["optimizer.lr=0.001"] if updates else []
    if name == "dgc":  # which on a GPU chooses exactly, where a sample may miss some on a CPU
        slower = ["compressor.selection=exact"]
    agree(tmp_path, [f"scheduler.name={schedule}", *settings(name), *slower], 1e-2 if name in DRAWS_THERE else 1e-3)


@pytest.mark.parametrize("name", sorted(set(compressors.available()) - BY_VALUE))
def test_no_step_waits_for_the_gpu(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never_waiting(monkeypatch, [*BASE, *settings(name), "scheduler.name=sync_easgd", f"output.dir={tmp_path}"])


def never_waiting(monkeypatch: pytest.MonkeyPatch, words: list[object]) -> None:
    """Train 12 steps. After the first ones, which plan, whatever waits raises."""
    begin = Trainer.begin_step

    def begun(run: Trainer, epoch: int) -> None:
        torch.cuda.set_sync_debug_mode("error" if 5 <= run.step < 10 else "default")
        begin(run, epoch)

    monkeypatch.setattr(Trainer, "begin_step", begun)
    try:
        assert here(2, [*words, "train.max_steps=12", "engine.device=cuda"]) == 0
    finally:
        torch.cuda.set_sync_debug_mode("default")


CAPTURED = [name for name in compressors.available() if not compressors.PLUGINS.load(name).uncaptured]


@pytest.mark.parametrize("schedule", ["sync_easgd", "wfbp"])
@pytest.mark.parametrize("name", CAPTURED)
def test_steps_from_graphs_equal_usual_ones_to_the_bit(name: str, schedule: str, tmp_path: Path) -> None:
    """Two virtual workers, in one bucket and in many; and steps that measure between them."""
    if schedule == "wfbp" and compressors.PLUGINS.load(name).whole_model:
        pytest.skip("it needs the model in one bucket")
    more = ["compressor.rounding=nearest"] if name == "int8" else []
    words = [*BASE, f"scheduler.name={schedule}", *settings(name), *more, "train.max_steps=12", "engine.threads=1"]
    for graphs in ("false", "true"):
        told = [*words, "engine.device=cuda", f"engine.cuda_graphs={graphs}", "output.health_every=7"]
        assert here(2, [*told, f"output.dir={tmp_path / graphs}"]) == 0
    assert losses(tmp_path / "true") == losses(tmp_path / "false")


def test_graphs_are_captured_beside_a_backward_pass(tmp_path: Path) -> None:
    """By the thread of a process with NCCL."""
    words = [*BASE, "scheduler.name=wfbp", *settings("topk"), "train.max_steps=12", "engine.threads=1"]
    for graphs in ("false", "true"):
        told = [*words, f"engine.cuda_graphs={graphs}", f"output.dir={tmp_path / graphs}"]
        ended = launch("torch", 1, told, tmp_path / "logs", IN_FP32)
        assert ended.code == 0, ended.said
    assert losses(tmp_path / "true") == losses(tmp_path / "false")


GPT = [
    ROOT / "configs/tables/today_gpt.toml", "model.depth=2", "model.width=64", "model.context=32", "data.length=32",
    "data.train_bytes=20000", "data.batch_size=4", "data.eval_batch_size=512",
    "train.eval_every=0", "train.warmup_steps=1",
]  # fmt: skip


def test_a_language_model_trains_alike_and_nothing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agree(tmp_path, ["train.max_steps=12"], base=GPT)
    never_waiting(monkeypatch, [*GPT, "train.max_steps=12", f"output.dir={tmp_path / 'waits'}"])


@pytest.mark.parametrize("name", [name for name in schedulers.available() if name != "builtin"])
def test_every_schedule_trains_alike_on_a_gpu(name: str, tmp_path: Path) -> None:
    agree(tmp_path, [*on_schedule(name), "compressor.name=none", "train.max_steps=12"])


@pytest.mark.parametrize(
    "words",
    [
        ["compressor.name=none", "train.precision=bf16"],
        ["compressor.name=topk", "compressor.density=0.01", "train.channels_last=true"],
        ["compressor.name=none", "scheduler.name=outer", "scheduler.every=2", "scheduler.fragments=2",
         "scheduler.delay=1", "scheduler.keep=0.5"],
        ["compressor.name=chunk_topk", *optimizer_for("chunk_topk"), "scheduler.name=outer", "scheduler.every=2",
         "scheduler.momentum=0", "scheduler.nesterov=false"],
        ["compressor.name=topk", "compressor.density=0.01", "output.health_every=2"],
    ],
    ids=["bf16", "channels_last", "streaming", "sparseloco", "health"],
)  # fmt: skip
def test_further_compositions_train_alike_on_a_gpu(words: list[str], tmp_path: Path) -> None:
    agree(tmp_path, words, 2e-2 if "train.precision=bf16" in words else 1e-3)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (1, ["scheduler.name=wfbp"]),
        (1, ["scheduler.name=dear"]),
        (1, ["scheduler.name=builtin"]),
        (1, ["scheduler.name=mg_wfbp", "train.max_steps=14"]),
        (1, ["scheduler.name=easgd"]),
        (1, ["scheduler.name=outer", "scheduler.every=2", "scheduler.fragments=2", "scheduler.delay=1"]),
        (1, ["compressor.name=dgc", *settings("dgc")[1:]]),
        (4, ["collective.name=native"]),
        (4, ["collective.name=ring"]),
        (4, ["collective.name=tree", "compressor.name=gtopk", *settings("gtopk")[1:]]),
        (4, ["collective.name=flexreduce", "network.topology=2+2"]),
        (4, ["scheduler.name=dear"]),
        (4, ["scheduler.name=outer", "scheduler.every=2", "scheduler.fragments=2", "scheduler.delay=1"]),
        (4, ["compressor.name=quantised_sum"]),
    ],
    ids=lambda value: "-".join(word.partition("=")[2] for word in value) if isinstance(value, list) else f"{value}",
)  # fmt: skip
def test_processes_train_alike_on_a_gpu(size: int, words: list[str], tmp_path: Path) -> None:
    """One rank with NCCL; four that share the GPU, and send through the hosts' memory."""
    told = [*BASE, *words, "engine.threads=1", "engine.timeout_seconds=60"]
    ended = launch("torch", size, [*told, f"output.dir={tmp_path / 'cuda'}"], tmp_path / "logs", IN_FP32)
    assert ended.code == 0, ended.said
    assert record(tmp_path / "cuda")["backend"] == ("nccl" if size == 1 else "gloo")
    plain = [str(word).replace("=builtin", "=fused") if "scheduler" in str(word) else word for word in told]
    assert here(size, [*plain, "engine.device=cpu", f"output.dir={tmp_path / 'cpu'}"]) == 0
    assert losses(tmp_path / "cuda") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-3)
