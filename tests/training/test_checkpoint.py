"""Checkpoints: what is resumed ends as if nothing had happened; what is damaged is found and named."""

import functools
import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_tensors

from tests.distributed.ends import assert_same_end, checkpoints, losses, record
from tests.distributed.launch import CONFIG, here
from wirebench.compose import build as compose
from wirebench.training import state_files

# Two workers, 6 steps an epoch, 12 in all; every draw, rate and density depends on the place in the run.
BASE = ["train.max_steps=0", "train.epochs=2", "optimizer.schedule=cosine", "optimizer.warmup_epochs=0.5"]


class Counting(torch.optim.SGD):
    """Its rate falls with the steps that it has counted, in its parameter group."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            group["lr"] /= group["steps"]
        super().step(closure)


def run(folder: Path, *overrides: str, size: int = 2) -> int:
    return here(size, [CONFIG, *BASE, f"output.dir={folder}", *overrides])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    assert run(folder) == 0
    return folder


@pytest.fixture(scope="module")
def six_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended after its first epoch, with checkpoints of 4 and 6 steps; copy it before use."""
    folder = tmp_path_factory.mktemp("six")
    assert run(folder, "train.max_steps=6") == 0
    assert [path.name for path in checkpoints(folder)] == ["step-00000004", "step-00000006"]
    return folder


@pytest.fixture
def broken_off(six_steps: Path, tmp_path: Path) -> Path:
    shutil.copytree(six_steps, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["train.accumulation=4", "compressor.warmup=[0.5]", "optimizer.nesterov=true"],
        ["compressor.dense_below=0", "scheduler.name=fused", "collective.name=ring", "train.channels_last=true"],
        ["train.precision=bf16", "optimizer.weight_decay=0.01", "train.label_smoothing=0.1", "train.keep=1"],
    ],
    ids=["topk", "warmup", "fused-ring", "bf16"],
)
@pytest.mark.parametrize("stops", [[5], [6], [2, 9]], ids=["within-epoch", "between-epochs", "twice"])
def test_a_resumed_run_ends_as_the_unbroken_one(overrides: list[str], stops: list[int], tmp_path: Path) -> None:
    every = [*overrides, "train.checkpoint_every_steps=1"]
    assert run(tmp_path / "unbroken", *every) == 0
    for stop in stops:
        assert run(tmp_path / "resumed", *every, f"train.max_steps={stop}", "train.resume=auto") == 0
        assert checkpoints(tmp_path / "resumed")[-1].name == f"step-{stop:08d}"
    assert run(tmp_path / "resumed", *every, "train.resume=auto") == 0
    assert_same_end(tmp_path / "resumed", tmp_path / "unbroken")
    assert record(tmp_path / "resumed")["resumed_at"] == stops[-1]


@pytest.mark.parametrize(
    "schedule",
    [
        ["scheduler.name=easgd", "compressor.name=none"],
        ["scheduler.name=outer", "scheduler.every=4", "scheduler.fragments=2", "scheduler.delay=3"],
    ],
    ids=["easgd", "outer"],
)
def test_weights_that_each_rank_has_for_itself_are_resumed(schedule: list[str], tmp_path: Path) -> None:
    """The checkpoint of outer lies between a fragment's exchange and its application."""
    assert run(tmp_path / "unbroken", *schedule) == 0
    assert run(tmp_path / "resumed", *schedule, "train.max_steps=6") == 0
    assert run(tmp_path / "resumed", *schedule, "train.resume=auto") == 0
    assert_same_end(tmp_path / "resumed", tmp_path / "unbroken")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "optimizer",
    [torch.optim.Adam, functools.partial(torch.optim.RMSprop, centered=True), Counting],
    ids=["adam", "rmsprop", "state-in-its-groups"],
)
def test_any_optimizer_is_resumed_whole(
    optimizer: Callable[..., torch.optim.Optimizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only SGD's momentum: every tensor and number that an optimizer keeps, of a layer or of a group."""
    monkeypatch.setattr(compose, "build_optimizer", lambda model, section: optimizer(model.parameters(), lr=section.lr))
    assert run(tmp_path / "unbroken") == 0
    assert run(tmp_path / "resumed", "train.max_steps=5", "train.checkpoint_every_steps=5") == 0
    assert run(tmp_path / "resumed", "train.resume=auto") == 0
    assert record(tmp_path / "resumed")["resumed_at"] == 5
    assert_same_end(tmp_path / "resumed", tmp_path / "unbroken")


def test_readings_of_the_health_are_kept_beyond_step_nine(tmp_path: Path) -> None:
    """Their steps are keys: 2 comes before 10 as a number, after it as the text that a file holds."""
    every = ["output.health_every=1", "train.checkpoint_every_steps=1"]
    assert run(tmp_path / "unbroken", *every) == 0
    assert run(tmp_path / "resumed", *every, "train.max_steps=11") == 0
    assert run(tmp_path / "resumed", *every, "train.resume=auto") == 0
    assert record(tmp_path / "resumed")["resumed_at"] == 11
    assert record(tmp_path / "resumed")["health"] == record(tmp_path / "unbroken")["health"]


def test_everything_is_in_a_checkpoint(unbroken: Path) -> None:
    newest = checkpoints(unbroken)[-1]
    assert sorted(path.name for path in newest.iterdir()) == [
        "model.safetensors", "rank-0000.safetensors", "rank-0001.safetensors", "state.json",
    ]  # fmt: skip
    model = load_tensors((newest / "model.safetensors").read_bytes())
    assert {"parameter.conv.weight", "optimizer.state.conv.weight.momentum_buffer"} <= model.keys()
    ranks = [load_tensors((newest / f"rank-000{r}.safetensors").read_bytes()) for r in range(2)]
    assert {"buffer.norm.running_mean", "compressor.residual", "epoch_loss"} == ranks[0].keys() & {
        "buffer.norm.running_mean", "compressor.residual", "epoch_loss",
    }  # fmt: skip
    for name in ("buffer.norm.running_mean", "compressor.residual"):
        assert not torch.equal(ranks[0][name], ranks[1][name])
        assert ranks[0][name].abs().sum() > 0


def test_a_run_elsewhere_can_go_on_from_a_path(six_steps: Path, unbroken: Path, tmp_path: Path) -> None:
    for name, source in (("a", six_steps), ("b", checkpoints(six_steps)[0]), ("c", six_steps / "checkpoints")):
        assert run(tmp_path / name, f"train.resume={source}") == 0
        resumed_at = 4 if name == "b" else 6
        assert record(tmp_path / name)["resumed_at"] == resumed_at
        lines = (tmp_path / name / "steps.jsonl").read_text().splitlines()
        assert [json.loads(line)["loss"] for line in lines] == losses(unbroken)[resumed_at:]


def test_auto_starts_anew_where_there_is_nothing(
    tmp_path: Path, unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "run", "train.resume=auto") == 0
    assert f"no checkpoint in {tmp_path / 'run/checkpoints'} yet: starting anew" in capsys.readouterr().out
    assert_same_end(tmp_path / "run", unbroken)


def test_a_finished_run_has_nothing_left_to_do(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken, tmp_path / "run")
    assert run(tmp_path / "run", "train.resume=auto") == 0
    assert record(tmp_path / "run")["steps_done"] == 12
    assert_same_end(tmp_path / "run", unbroken)


def test_steps_of_another_future_are_dropped(broken_off: Path) -> None:
    """Who goes back to step 4 and saves step 5 must not find step 6 of the run before in the next resume."""
    first = checkpoints(broken_off)[0]
    kept = [first.with_name(name) for name in ("step-00000004.good", "step-best", "step-notes")]  # somebody's own
    for folder in kept:
        shutil.copytree(first, folder)
    once = ["train.max_steps=5", "train.checkpoint_every_steps=5", "optimizer.lr=0.02"]
    assert run(broken_off, f"train.resume={first}", *once) == 0
    assert {*checkpoints(broken_off)} == {first, first.with_name("step-00000005"), *kept}
    assert len(losses(broken_off)) == 5


def edited(name: str, edit: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Damages a checkpoint's file of this name."""

    def damage(folder: Path) -> None:
        (folder / name).write_bytes(edit((folder / name).read_bytes()))

    return damage


def lost(name: str) -> Callable[[Path], None]:
    """Removes a checkpoint's file of this name."""
    return lambda folder: (folder / name).unlink()


CUT_SHORT = edited("model.safetensors", lambda content: content[:-7])


def forge(folder: Path) -> None:
    """A pickle that would write a file if anybody opened it, with good checksums."""
    content = pickle.dumps(_Bomb(folder.parent / "exploded"))
    (folder / "model.safetensors").write_bytes(content)
    state = json.loads((folder / "state.json").read_text())
    state["files"]["model.safetensors"] = hashlib.sha256(content).hexdigest()
    state.pop("checksum")
    (folder / "state.json").write_text(json.dumps({**state, "checksum": state_files._checksum(state)}))


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (CUT_SHORT, "model.safetensors does not match its checksum"),
        (
            edited("rank-0001.safetensors", lambda c: c[:-1] + bytes([c[-1] ^ 1])),
            "rank-0001.safetensors does not",
        ),
        (
            edited("state.json", lambda c: c.replace(b'"step": 6', b'"step": 5')),
            "state.json does not match its",
        ),
        (edited("state.json", lambda _: b""), "state.json is not a checkpoint's"),
        (edited("state.json", lambda _: b"[1, 2]"), "state.json is not a checkpoint's"),
        (lost("state.json"), "state.json: No such file or directory"),
        (lost("rank-0001.safetensors"), "rank-0001.safetensors: No such file or directory"),
        (forge, "model.safetensors: "),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    damage: Callable[[Path], None], why: str, broken_off: Path, unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newest = checkpoints(broken_off)
    damage(newest)
    assert run(broken_off, "train.resume=auto") == 0
    said = capsys.readouterr().out
    assert f"{newest}: damaged ({why}" in said
    assert f"resuming from {older}" in said
    assert not (broken_off / "checkpoints" / "exploded").exists()
    assert_same_end(broken_off, unbroken)


def test_no_checkpoint_is_whole(broken_off: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older, newest = checkpoints(broken_off)
    CUT_SHORT(older)
    lost("state.json")(newest)
    assert run(broken_off, "train.resume=auto") == 2
    assert capsys.readouterr().err == f"error: train.resume: no checkpoint is whole, of {newest}, {older}\n"
    assert losses(broken_off)


def test_what_a_kill_left_half_written_is_no_checkpoint(broken_off: Path, unbroken: Path) -> None:
    partial = broken_off / "checkpoints" / ".step-00000007.partial"
    shutil.copytree(checkpoints(broken_off)[-1], partial)
    assert run(broken_off, "train.resume=auto") == 0
    assert_same_end(broken_off, unbroken)
    assert not partial.exists()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("line", "content"),
    [
        (3, b"\xff\x00\xfe"), (1, b'{"loss": 1.0}'), (6, b"7"), (2, b'{"step": null}'),
        (0, b"\xff\xfe garbage without an end"), (0, b"\0" * 4096), (0, b'{"loss": 1.0}'),
    ],
)  # fmt: skip
def test_a_damaged_list_of_steps_is_set_aside(
    line: int, content: bytes, broken_off: Path, unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is bookkeeping: the run goes on, and says where the file is.

    A last line without an end is one that a kill cut short only if it begins as a step does.
    """
    path = broken_off / "steps.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if line:
        lines[line - 1] = content + b"\n"
    damaged = b"".join(lines) if line else content
    path.write_bytes(damaged)
    assert run(broken_off, "train.resume=auto") == 0
    [aside] = broken_off.glob("steps.jsonl.damaged-*")
    kept = [step for step in range(6) if line and step != line - 1]
    said = f"{path} is damaged (line {max(line, 1)}): set aside as {aside.name}, {len(kept)} steps of it are kept"
    assert said in capsys.readouterr().out.splitlines()
    assert aside.read_bytes() == damaged
    assert [json.loads(each)["step"] for each in path.read_text().splitlines()] == [*kept, *range(6, 12)]
    assert record(broken_off)["final"] == record(unbroken)["final"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("content", [b"\xff\xfe", b"{}", b"[1]", b'{"status": "fini', b'{"status": "finished"}'])
def test_a_damaged_record_is_set_aside(
    content: bytes, unbroken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(unbroken, tmp_path / "run")
    path = tmp_path / "run" / "record.json"
    path.write_bytes(content)
    assert run(tmp_path / "run", "train.resume=auto") == 0
    [aside] = path.parent.glob("record.json.damaged-*")
    said = f"{path} is damaged: set aside as {aside.name}, and written anew"
    assert said in capsys.readouterr().out.splitlines()
    assert aside.read_bytes() == content
    assert_same_end(tmp_path / "run", unbroken)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("model.name=toy", "has model.name = 'mine.net', this run has 'toy'"),
        ("data.batch_size=16", "has data.batch_size = 8, this run has 16"),
        ("train.seed=7", "has train.seed = 0, this run has 7"),
        ("train.accumulation=1", "has train.accumulation = 2, this run has 1"),
        ("compressor.density=0.1", "has compressor.density = 0.05, this run has 0.1"),
        ("compressor.dense_below=0", "has compressor.dense_below = 40, this run has 0"),
        ("data.train_size=48", "has data.train_size = 96, this run has 48"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    override: str, what: str, broken_off: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = checkpoints(broken_off)[-1]
    before = {path: path.read_bytes() for path in broken_off.rglob("*") if path.is_file()}
    assert run(broken_off, "train.resume=auto", override) == 2
    assert capsys.readouterr().err == f"error: train.resume: {newest} {what}\n"
    assert before == {path: path.read_bytes() for path in broken_off.rglob("*") if path.is_file()}


@pytest.mark.parametrize("form", [3, 99])
def test_a_checkpoint_of_another_version_is_refused(
    form: int, broken_off: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, and the older ones are not tried: they would silently undo what was trained since."""
    newest = checkpoints(broken_off)[-1]
    path = newest / "state.json"
    path.write_text(path.read_text().replace('"format": 4', f'"format": {form}'))
    assert run(broken_off, "train.resume=auto") == 2
    said = capsys.readouterr()
    assert said.err == (
        f"error: train.resume: {newest} has checkpoint format {form}, and this version reads format 4 only; "
        "resume it with the version that wrote it, or begin anew without train.resume\n"
    )
    assert "damaged" not in said.out


def test_the_newest_is_that_of_the_highest_step(tmp_path: Path) -> None:
    for name in ("step-99999999", "step-100000000", "step-100000000.before", "step-x", "step-00000001.before.old"):
        (tmp_path / name).mkdir()
    found = [path.name for path in state_files.candidates(tmp_path, "auto")]
    assert found == ["step-100000000", "step-100000000.before", "step-99999999"]
