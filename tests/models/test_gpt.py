"""The GPT: its sizes, that it sees no token before it is there, and that it learns a text that can be learned."""

import functools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.distributed.launch import here
from wirebench import data, models
from wirebench.data import python_sources, sequences
from wirebench.data.base import Key
from wirebench.errors import UserError
from wirebench.record import schema


def build(**options: float) -> torch.nn.Module:
    torch.manual_seed(0)
    return models.build("gpt", 256, (), **({"depth": 2, "width": 32, "heads": 2, "context": 16} | options))


@pytest.mark.parametrize(
    ("classes", "options", "millions"),
    [
        (256, {"depth": 4, "width": 192, "heads": 4, "context": 128}, 1.85),
        (50257, {"depth": 12, "width": 768, "heads": 12, "context": 1024}, 124.4),
    ],
)
def test_sizes(classes: int, options: dict[str, int], millions: float) -> None:
    """The second is GPT-2's smallest, of 124 million parameters (Radford et al. 2019 count 117)."""
    with torch.device("meta"):
        count = sum(p.numel() for p in models.build("gpt", classes, (), **options).parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.005)


def test_what_comes_later_changes_nothing_before_it() -> None:
    model = build().eval()
    tokens = torch.randint(0, 256, (3, 16), generator=torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[:, 10:] = (other[:, 10:] + 1) % 256
    before, after = model(tokens), model(other)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.equal(before[:, 10:], after[:, 10:])


def test_a_fresh_model_knows_nothing() -> None:
    """Its loss is that of a guess among 256, and the variance of its stream does not grow with the depth."""
    tokens, labels = torch.randint(0, 256, (2, 8, 16), generator=torch.Generator().manual_seed(1))
    for depth in (1, 8):
        logits = build(depth=depth)(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        assert loss.item() == pytest.approx(math.log(256), abs=0.1)


def test_a_narrow_models_weights_can_be_larger() -> None:
    usual, larger = (dict(build(**options).named_parameters()) for options in ({}, {"std": 0.06}))
    for name, parameter in larger.items():
        assert torch.allclose(parameter, 3 * usual[name]) if parameter.dim() == 2 else parameter.equal(usual[name])
    with pytest.raises(UserError, match=r"model\.std: is above 0 and finite, got 0"):
        build(std=0)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (torch.zeros(2, 17, dtype=torch.int64), "model.context: is 16, and the samples have 17 tokens"),
        (torch.zeros(2, 3, 8, 8), r"model.name: 'gpt' takes tokens.* got torch.float32 \(2, 3, 8, 8\)"),
    ],
)
def test_what_it_does_not_take(tokens: torch.Tensor, words: str) -> None:
    with pytest.raises(UserError, match=words):
        build()(tokens)


# --- Its data


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """The standard library's files are read once for all tests here."""
    read = functools.cache(lambda files, most: _read(list(files), most))
    _read = python_sources._read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_sources, "_read", lambda files, most: read(tuple(files), most))
        yield


def test_a_label_is_the_next_byte_and_sequences_follow_one_another() -> None:
    sources = data.build("python_sources", length=16)
    [(tokens, labels)] = sources.batches([torch.arange(4)], train=False, key=Key(0, 0, 0), device=torch.device("cpu"))
    assert torch.equal(tokens[:, 1:], labels[:, :-1])
    assert torch.equal(tokens[1:, 0], labels[:-1, -1])
    assert b"import" in bytes(_all(sources, train=False)[:20_000].tolist())


def test_cuts_lie_elsewhere_in_each_epoch_and_the_last_sample_is_whole() -> None:
    sources = data.build("python_sources", length=64, train_bytes=64_000)
    last = torch.tensor([0, sources.train_size - 1])

    def begin(epoch: int) -> torch.Tensor:
        [(tokens, labels)] = sources.batches([last], train=True, key=Key(3, epoch, 0), device=torch.device("cpu"))
        assert tokens.shape == labels.shape == (2, 64)
        return tokens

    assert torch.equal(begin(0), begin(0))
    assert len({bytes(begin(epoch)[0].tolist()) for epoch in range(8)}) > 4


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("most", "moved"), [(64_000, 1), (63_999, 0)])
def test_a_long_text_stays_on_the_host_and_its_batches_move(
    most: int, moved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "MOST_ON_DEVICE", most)
    sources = data.build("python_sources", length=64, train_bytes=64_000)
    [(tokens, labels)] = sources.batches([torch.arange(3)], train=True, key=Key(3, 0, 0), device=torch.device("meta"))
    assert tokens.device.type == labels.device.type == "meta" and tokens.shape == (3, 64)
    assert isinstance(sources, sequences.ByteSequences) and len(sources._on_device) == moved


def test_no_file_is_in_both_splits_and_the_splits_do_not_move() -> None:
    whole = data.build("python_sources", length=64)
    sizes = whole.train_size, whole.test_size
    assert 0.02 < sizes[1] / sum(sizes) < 0.1
    part = data.build("python_sources", length=64, train_bytes=100_000)
    assert part.test_size == whole.test_size
    assert isinstance(part, sequences.ByteSequences) and isinstance(whole, sequences.ByteSequences)
    assert part.digest != whole.digest, "the text that is used"
    assert bytes(_all(part, train=False)[:1000].tolist()) == bytes(_all(whole, train=False)[:1000].tolist())


def _all(sources: data.Dataset, train: bool) -> torch.Tensor:
    size = sources.train_size if train else sources.test_size
    [(tokens, _)] = sources.batches([torch.arange(size)], train=train, key=Key(0, 0, 0), device=torch.device("cpu"))
    return tokens.flatten()


def test_text_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/long.txt").write_text("".join(f"{number}\n" for number in range(200_000)))
    (tmp_path / "left.py").write_text("import this\n")
    own = data.build("text", str(tmp_path), length=32)
    assert 0.01 < own.test_size / own.train_size < 0.15
    assert data.build("text", str(tmp_path), length=4, suffix="").train_size > 8 * own.train_size * 0.9


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("root", "options", "words"),
    [
        ("x", {}, "data.root: 'python_sources' takes none"),
        ("", {"length": 0}, "data.length: needs at least 1"),
        ("", {"train_bytes": 10**12}, "data.train_bytes: the training split has"),
    ],
)
def test_what_is_no_text(root: str, options: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        data.build("python_sources", root, **options)


# --- All of it


def test_it_learns_and_the_record_speaks_of_tokens_and_bytes(tmp_path: Path) -> None:
    """Lines of ten letters in turn: whoever looks back ten places knows the next."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").write_text("abcdefghi\n" * 40_000)
    config = Path("configs/gpt_python_sources.toml")
    words = [
        config, "data.name=text", f"data.root={tmp_path / 'text'}", "data.length=32", "data.train_bytes=8192",
        "data.batch_size=2", "model.depth=1", "model.width=32", "model.heads=2", "model.context=32",
        "optimizer.lr=1e-2", "train.warmup_steps=2", f"output.dir={tmp_path / 'run'}", "output.tensorboard=false",
    ]  # fmt: skip
    assert here(4, words) == 0
    record = schema.read(tmp_path / "run")
    assert record["samples"]["unit"] == "samples" and record["samples"]["tokens"] == 32
    final = record["final"]
    assert final["bits_per_byte"] == pytest.approx(final["loss"] / math.log(2))
    assert final["perplexity"] == pytest.approx(math.exp(final["loss"]))
    assert record["history"][-1]["bits_per_byte"] == final["bits_per_byte"]
    assert final["bits_per_byte"] < 1.5, "8 bits know nothing, log2(10) = 3.3 the letters alone"
