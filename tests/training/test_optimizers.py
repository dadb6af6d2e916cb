"""AdamW, Muon and clipping: each equal to PyTorch's own in a plain loop, and resumed bit for bit."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.distributed.launch import here
from wirebench.config.sections import OptimizerConfig
from wirebench.gradient.clipping import clip
from wirebench.training.optimizers.build import build_optimizer
from wirebench.training.optimizers.muon import matrices_of


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 3))


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 5) -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(1)
    for _ in range(count):
        tokens = torch.randint(0, 5, (7, 2), generator=chance)
        optimizer.zero_grad()
        model(tokens).square().sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_adamw_is_pytorchs() -> None:
    ours, theirs = network(), network()
    section = OptimizerConfig(name="adamw", lr=0.01, momentum=0.8, beta2=0.95, eps=1e-6, weight_decay=0.1)
    plain = torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, fused=True)
    assert same(steps(ours, build_optimizer(ours, section)), steps(theirs, plain))


class Both:
    """Two optimizers of a model's parts."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        for part in self.parts:
            part.step()


def orthonormal(grad: torch.Tensor, factors: tuple[float, float, float], count: int, eps: float) -> torch.Tensor:
    """Newton and Schulz's iteration, https://kellerjordan.github.io/posts/muon, in fp32."""
    a, b, c = factors
    x = grad / grad.norm().clamp(min=eps)
    for _ in range(count):
        x = a * x + b * x @ x.T @ x + c * x @ x.T @ x @ x.T @ x
    return x


@pytest.mark.parametrize("bf16", [False, True])
def test_muon_is_pytorchs_for_matrices_inside_and_adamw_for_the_rest(
    bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU it multiplies in fp32, and PyTorch's in bf16."""
    ours, theirs = network(), network()
    section = OptimizerConfig(name="muon", lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1)
    mine = matrices_of(theirs)
    assert [tuple(p.shape) for p in mine] == [(6, 8), (6, 6)], "neither the embedding nor the head"
    rest = [p for p in theirs.parameters() if all(p is not each for each in mine)]
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}
    muon = torch.optim.Muon(mine, momentum=0.9, nesterov=True, adjust_lr_fn="match_rms_adamw", **options)
    adamw = torch.optim.AdamW(rest, betas=(0.9, 0.999), fused=True, **options)

    found = steps(ours, build_optimizer(ours, section))
    if not bf16:
        monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", orthonormal)
    expected = steps(theirs, Both(muon, adamw))  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, atol=0.01 if bf16 else 1e-5, rtol=0.0)
    assert not (bf16 and same(found, expected))


@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_dion2_updates_a_share_of_the_rows_and_decays_their_momentum_alone(fraction: float) -> None:
    """Against a matrix by matrix loop over the paper's steps, with the rows one by one."""
    ours, theirs = network(), network()
    section = OptimizerConfig(name="dion2", lr=0.01, momentum=0.9, weight_decay=0.1, fraction=fraction)
    mine = matrices_of(theirs)
    rest = [p for p in theirs.parameters() if all(p is not each for each in mine)]
    adamw = torch.optim.AdamW(rest, lr=0.01, betas=(0.9, 0.999), weight_decay=0.1, fused=True)
    held = [torch.zeros_like(weight) for weight in mine]

    class ByRows(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for weight, momentum in zip(mine, held, strict=True):
                assert weight.grad is not None
                momentum += weight.grad
                assert weight.shape[0] == 6 <= weight.shape[1]
                largest = momentum.abs().sum(dim=1).argsort(descending=True)[: math.ceil(6 * fraction)].tolist()
                rows = torch.stack([momentum[row] for row in largest])
                update = orthonormal(rows, (3.4445, -4.7750, 2.0315), 5, 1e-7)
                weight *= 1 - 0.01 * 0.1
                for row, part in zip(largest, update, strict=True):
                    weight[row] -= 0.01 * 0.2 * max(weight.shape) ** 0.5 * part
                    momentum[row] *= 0.9

    expected = steps(theirs, Both(ByRows(mine), adamw), 8)  # type: ignore[arg-type]
    torch.testing.assert_close(steps(ours, build_optimizer(ours, section), 8), expected, atol=1e-5, rtol=0.0)
    first = nn.Linear(3, 8, bias=False)
    tall = nn.Sequential(first, nn.Linear(8, 3, bias=False))
    before = first.weight.detach().clone()
    optimizer = build_optimizer(tall, OptimizerConfig(name="dion2", lr=0.01))
    tall(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    changed = first.weight.detach().ne(before).all(dim=0)
    assert changed.sum() == 1, "a quarter of three columns, of which there are fewer than rows"


@pytest.mark.parametrize("name", ["adamw", "muon", "dion2"])
def test_its_state_goes_on(name: str) -> None:
    section = OptimizerConfig(name=name, lr=0.01)  # type: ignore[arg-type]
    unbroken, again = network(), network()
    first, second = (build_optimizer(each, section) for each in (unbroken, again))
    steps(unbroken, first)
    again.load_state_dict(unbroken.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert same(steps(again, second), steps(unbroken, first))


@pytest.mark.parametrize("name", ["adamw", "muon", "dion2"])
def test_decay_leaves_biases_alone_where_it_is_told_to(name: str) -> None:
    section = OptimizerConfig(name=name, lr=0.01, weight_decay=0.1, decay_norm=False)  # type: ignore[arg-type]
    optimizer = build_optimizer(network(), section)
    decays = {p.ndim: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays == {1: 0.0, 2: 0.1}


def test_clipping_is_pytorchs() -> None:
    flat = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for most in (0.0, 1.0, 1e6):
        ours, theirs = flat.clone(), nn.Parameter(torch.zeros(1000))
        theirs.grad = flat.clone()
        parts = [part.clone() for part in flat.split(300)]
        clip([ours], most)
        clip(parts, most)
        if most:
            nn.utils.clip_grad_norm_([theirs], most)
        assert torch.allclose(ours, theirs.grad, rtol=1e-6)
        assert torch.allclose(torch.cat(parts), theirs.grad, rtol=1e-6)


def test_clipping_hides_nothing_that_is_not_finite() -> None:
    huge, broken = torch.full((3,), 1e30), torch.tensor([1.0, torch.inf])
    clip([huge], 1.0)
    clip([broken], 1.0)
    assert huge.tolist() == [torch.tensor(1e30).item()] * 3, "its squares overflow, and a scale of 0 would lose it"
    assert broken.tolist() == [1.0, torch.inf]


CONFIG = "configs/gpt_python_sources.toml"
SMALL = (
    "model.depth=2", "model.width=16", "model.heads=2", "model.context=16", "data.length=16", "data.train_bytes=4096",
    "data.batch_size=2", "train.warmup_steps=0", "train.eval_every=0", "output.tensorboard=false",
)  # fmt: skip


@pytest.mark.parametrize("words", [["optimizer.name=adamw"], ["optimizer.name=muon", "compressor.name=topk"]])
def test_a_resumed_run_ends_as_the_unbroken_one(words: list[str], tmp_path: Path, capsys) -> None:
    # Three of these files are the test split; that of python_sources takes longer than all the rest.
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text(f"The {number}th of sixty short texts. " * 6)
    text = ["data.name=text", f"data.root={tmp_path}"]
    both = [CONFIG, *SMALL, *text, *words, "train.checkpoint_every_steps=4"]
    assert here(2, [*both, "train.max_steps=8", f"output.dir={tmp_path / 'unbroken'}"]) == 0
    assert here(2, [*both, "train.max_steps=4", f"output.dir={tmp_path / 'broken'}"]) == 0
    assert here(2, [*both, "train.max_steps=8", f"output.dir={tmp_path / 'broken'}", "train.resume=auto"]) == 0
    other = ["optimizer.name=adamw"] if "optimizer.name=muon" in words else ["optimizer.name=muon"]
    assert here(2, [*both, *other, "train.max_steps=9", f"output.dir={tmp_path / 'broken'}", "train.resume=auto"]) == 2
    assert "the checkpoint has the state of another optimizer" in capsys.readouterr().err
    kept = [(tmp_path / name / "checkpoints/step-00000008") for name in ("unbroken", "broken")]
    files = sorted(path.name for path in kept[0].iterdir() if path.suffix == ".safetensors")
    assert files
    assert all((kept[0] / name).read_bytes() == (kept[1] / name).read_bytes() for name in files)


def test_what_does_not_go_with_it_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert here(2, [CONFIG, *SMALL, "compressor.name=dgc", f"output.dir={tmp_path / 'run'}"]) == 2
    line = "optimizer.name: 'dgc' applies the momentum itself, in place of sgd's; set optimizer.name=sgd"
    assert line in capsys.readouterr().err
