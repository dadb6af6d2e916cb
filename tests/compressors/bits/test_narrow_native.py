"""The loops in C of narrow numbers: results equal PyTorch's to the bit; how they are built, kept and done without."""

import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from tests.helpers import exchange, normal
from wirebench.compressors.bits.narrow import (
    LOOPS,
    PLAIN,
    added,
    chunk_of,
    message_bytes,
    quantised,
    restored,
)
from wirebench.compressors.kernels import native
from wirebench.compressors.quantised_sum import QuantisedSum
from wirebench.errors import UserError

LOT = 1024
"""Elements that the loops work on at once."""


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """What a test does to the way the loops are found ends with it."""
    native.library.cache_clear()
    yield
    native.library.cache_clear()


def by_both(work: Callable[[], Any]) -> tuple[Any, Any]:
    """What PyTorch gives, and what the loops give."""
    if native.library() is None:
        pytest.skip("no C compiler")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(native, "usable", lambda x: False)
        twin = work()
    return twin, work()


def same(twin: Tensor, mine: Tensor) -> bool:
    """Equal to the bit, the sign of 0 included; NaN equals NaN."""
    return bool(((twin.view(torch.int32) == mine.view(torch.int32)) | (twin.isnan() & mine.isnan())).all())


def any_floats(numel: int, seed: int, kind: str) -> Tensor:
    """Numbers near 1; near the smallest or the largest fp32 has; of every exponent, NaN and infinity among them."""
    rng = torch.Generator().manual_seed(seed)
    if kind == "bits":
        x = torch.randint(-(1 << 31), (1 << 31) - 1, (numel,), generator=rng).to(torch.int32).view(torch.float32)
        return x.masked_fill_(x.isnan(), torch.nan)  # one kind of NaN: which of two survives a product is not defined
    x = torch.randn(numel, generator=rng)
    x = x * {"usual": 1.0, "small": 1e-36, "smallest": 1e-40, "large": 1e38}[kind]
    x[:: 1 + numel // 7] = -0.0
    x[1 :: 1 + numel // 3] = {"usual": 3.0, "small": 0.0, "smallest": -0.0, "large": torch.inf}[kind]
    return x


def compare(form: Any, chunk: int, numel: int, parts: int, keep: bool, stochastic: bool, x: Tensor) -> None:
    """The message, what it leaves, what arrives and what is added up."""
    chunk = chunk_of(form, chunk)
    unit = parts * max(chunk, 4)
    whole = -(-numel // unit) * unit

    def work() -> list[Tensor]:
        left = x.clone()
        rng = torch.Generator().manual_seed(numel) if stochastic else None
        message = quantised(left, chunk, form, whole, parts, keep, rng)
        assert message.numel() == parts * message_bytes(whole // parts, chunk, form)
        pieces = list(message.chunk(parts))
        other = quantised(normal(1, 1, whole // parts)[0], chunk, form, whole // parts)
        arriving = restored(pieces, chunk, form, torch.empty(numel), parts)
        return [message, left, arriving, added([pieces[0], other, other], chunk, form)]

    (first, *twin), (second, *mine) = by_both(work)
    if form in PLAIN:  # of a NaN in 16 bits PyTorch has one code in its vectors and another behind them
        assert same(first.view(PLAIN[form]).float(), second.view(PLAIN[form]).float())
    else:
        assert torch.equal(first, second)
    for each, other in zip(twin, mine, strict=True):
        assert same(each, other)


@pytest.mark.parametrize("stochastic", [False, True], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("form", LOOPS)
def test_messages_errors_and_sums_equal_pytorchs(form: Any, stochastic: bool) -> None:
    """At the edges of chunks, of lots and of the rows of random bits."""
    sizes = [(4, 1, 1), (16, LOT - 1, 1), (20, LOT + 1, 2), (256, 5 * LOT, 4), (LOT + 4, 3 * LOT, 1), (4096, 9001, 2)]
    for number, (chunk, numel, parts) in enumerate(sizes):
        for kind in ("usual", "bits", "small", "large") if numel < 2 * LOT else ("bits", "usual"):
            compare(form, chunk, numel, parts, number % 2 == 0, stochastic, any_floats(numel, number, kind))


@given(
    form=st.sampled_from(LOOPS),
    chunk=st.integers(1, 500).map(lambda fours: 4 * fours),
    numel=st.integers(1, 3000),
    parts=st.integers(1, 4),
    keep=st.booleans(),
    stochastic=st.booleans(),
    kind=st.sampled_from(["usual", "small", "smallest", "large", "bits"]),
    seed=st.integers(0, 1000),
)
@example(form="nvfp4", chunk=4, numel=33, parts=4, keep=True, stochastic=False, kind="smallest", seed=0)
def test_whatever_the_numbers_results_equal_pytorchs(
    form: Any, chunk: int, numel: int, parts: int, keep: bool, stochastic: bool, kind: str, seed: int
) -> None:
    compare(form, chunk, numel, parts, keep, stochastic, any_floats(numel, seed, kind))


@pytest.mark.parametrize("form", LOOPS)
def test_whatever_the_bytes_of_a_message_what_arrives_equals_pytorchs(form: Any) -> None:
    """Scales below 0, codes that no message has, and NaN."""
    chunk = chunk_of(form, 12)
    numel = 3 * LOT // max(chunk, 4) * max(chunk, 4)
    rng = torch.Generator().manual_seed(0)
    size = message_bytes(numel, chunk, form)
    messages = [torch.randint(256, (size,), generator=rng).to(torch.uint8) for _ in range(3)]

    def work() -> tuple[Tensor, Tensor]:
        return added(messages, chunk, form), restored(messages[:2], chunk, form, torch.empty(2 * numel - 5), 3)

    for twin, mine in zip(*by_both(work), strict=True):
        assert same(twin, mine)


@pytest.mark.parametrize("form", LOOPS)
def test_threads_share_the_work_and_change_no_bit(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares end within parts; a chunk that is longer than a lot belongs to one of them."""
    monkeypatch.setattr(native, "SHARE", 100)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    for chunk, numel, parts in ((16, 6 * LOT + 1, 3), (2 * LOT, 20 * LOT - 7, 2)):
        compare(form, chunk, numel, parts, True, True, any_floats(numel, parts, "usual"))


@pytest.mark.parametrize("form", ["mxfp8", "mxfp6", "mxfp4", "nvfp4", "int4"])
def test_a_chunk_with_a_nan_of_either_sign_arrives_as_nan(form: Any) -> None:
    """The processor's own NaN, of infinity less infinity, has a sign, and PyTorch's maximum may have one, too."""
    for bad in (torch.nan, -torch.nan):
        values = torch.ones(4 * LOT)
        values[2 * LOT + 5] = bad

        def work(values: Tensor = values) -> Tensor:
            message = quantised(values.clone(), chunk_of(form, 64), form, values.numel())
            return restored([message], chunk_of(form, 64), form, torch.empty_like(values))

        for arriving in by_both(work):
            assert bool(arriving[2 * LOT : 2 * LOT + 16].isnan().all())


@pytest.mark.parametrize(("compiler", "said"), [("/nowhere/cc -m64", "/nowhere/cc"), ("false", "exit"), ("'", "quot")])
def test_without_a_compiler_the_bits_are_the_same_and_one_warning_says_so(
    compiler: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = normal(2, 0, 1000)
    methods = [QuantisedSum("mxfp4") for _ in range(2)]
    wanted = exchange(methods, [each.clone() for each in given])
    native.library.cache_clear()
    monkeypatch.setenv("CC", compiler)
    with pytest.warns(UserWarning, match=f"without its loops in C, and slower: .*{said}") as warned:
        methods = [QuantisedSum("mxfp4") for _ in range(2)]
        found = exchange(methods, [each.clone() for each in given])
    assert len(warned) == 1
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def test_the_variable_turns_them_off_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIREBENCH_NATIVE", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert native.library() is None
    assert not native.usable(torch.ones(4))
    native.library.cache_clear()
    monkeypatch.setenv("WIREBENCH_NATIVE", "off")
    with pytest.raises(UserError, match="WIREBENCH_NATIVE is 0 or 1, got 'off'"):
        QuantisedSum().prepare(torch.device("cpu"))
    QuantisedSum().prepare(torch.device("meta"))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder, which is empty, for a library that is built in no time."""
    if native.library() is None:
        pytest.skip("no C compiler")
    source = tmp_path / "small.c"
    source.write_text("".join(f"int {name}(void) {{ return 7; }}\n" for name in native.ARGUMENTS))
    monkeypatch.setattr(native, "SOURCE", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "wirebench"


def built() -> None:
    """Raises where there are no loops, as `library` does not."""
    native._loaded()


def test_what_is_built_is_kept_and_what_is_broken_there_is_built_again(small: Path) -> None:
    built()
    (kept,) = small.iterdir()
    whole, before = kept.read_bytes(), kept.stat()
    built()
    assert kept.stat().st_ino == before.st_ino
    for broken in (whole[: len(whole) // 2], whole[:-1], b"", whole.replace(b"\x7fELF", b"\x7fELG")):
        kept.unlink()  # the loaded one stays as it is
        kept.write_bytes(broken)
        built()
        assert native._sound(kept) and list(small.iterdir()) == [kept]


def test_another_source_and_other_flags_have_files_of_their_own(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built()
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-DOTHER"))
    built()
    native.SOURCE.write_text(native.SOURCE.read_text().replace("7", "8"))
    built()
    assert len(list(small.iterdir())) == 3


@pytest.mark.parametrize("home", ["/dev/null", "~"])
def test_a_cache_that_cannot_be_written_costs_a_build_alone(
    home: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs under any user's number: "~" stays as it is, and is no folder to write to."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: home)
    monkeypatch.chdir(tmp_path)
    built()
    assert not small.exists() and not (tmp_path / "~").exists()
    assert (native._cache() is None) == (home == "~")


def compiler_of(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler of one's own: a shell script, which may hand its words on to `cc "$@"`."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))


def test_hosts_of_two_kinds_in_one_home_build_their_own(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a compiler says of the processor it builds for is in the name: code of another one would end the process."""
    compiler_of(tmp_path, 'case "$*" in *-###*) echo "-march=$KIND" >&2 ;; esac; exec cc "$@"', monkeypatch)
    names: list[set[str]] = []
    for kind in ("avx512", "avx2", "avx512"):
        monkeypatch.setenv("KIND", kind)
        built()
        names.append({each.name for each in small.iterdir()})
    assert [len(each) for each in names] == [1, 2, 2]


def test_a_compiler_that_does_not_know_this_processor_builds_for_any(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler_of(tmp_path, 'case "$*" in *-march=native*) echo no >&2; exit 1 ;; esac; exec cc "$@"', monkeypatch)
    built()
    assert len(list(small.iterdir())) == 1


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo slow >&2; exec sleep 5", "took longer than 0.2 s"),
        ('exec cc -fvisibility=hidden "$@"', "undefined symbol"),
    ],
)
def test_a_compiler_that_hangs_or_hides_what_it_builds_is_done_without(
    small: Path, tmp_path: Path, script: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler_of(tmp_path, script, monkeypatch)
    if "sleep" in script:
        monkeypatch.setattr(native, "BUILD_SECONDS", 0.2)
    native.library.cache_clear()
    with pytest.warns(UserWarning, match=f"without its loops in C, and slower: .*{said}") as warned:
        assert native.library() is None and native.library() is None
    assert len(warned) == 1


def test_messages_of_two_lengths_are_refused_before_they_are_read() -> None:
    if native.library() is None:
        pytest.skip("no C compiler")
    whole, short = (quantised(torch.ones(numel), 16, "int8", numel) for numel in (64, 32))
    with pytest.raises(AssertionError, match="messages of these chunks"):
        added([whole, short], 16, "int8")
    with pytest.raises(AssertionError, match="messages of these chunks"):
        native.restore([short], 16, LOOPS.index("int8"), 2, torch.empty(33))


@pytest.mark.parametrize("form", LOOPS)
def test_nothing_has_a_message_of_its_head_alone(form: Any) -> None:
    message = quantised(torch.empty(0), chunk_of(form, 16), form, 0, 2)
    assert message.numel() == 2 * message_bytes(0, chunk_of(form, 16), form) and not message.any()
    assert added(list(message.chunk(2)), chunk_of(form, 16), form).numel() == 0


def test_processes_that_build_at_once_leave_one_sound_file(small: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(3)

    def build() -> None:
        ready.wait(60)
        built()

    processes = [context.Process(target=build) for _ in range(3)]
    for each in processes:
        each.start()
    for each in processes:
        each.join(60)
    assert [each.exitcode for each in processes] == [0, 0, 0]
    (kept,) = small.iterdir()
    assert native._sound(kept)
