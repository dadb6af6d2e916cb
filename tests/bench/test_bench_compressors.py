"""The benchmark of compressors: what it times, what it counts as memory, what its cells say, and its mistakes."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import charts
from tests.cli.verbs import verb
from tests.helpers import whole
from wirebench.bench import compressors as bench_compressors
from wirebench.bench import turns as _compressor_turns
from wirebench.bench.baselines import DdpHook, Rival, SketchOfTorch, rivals
from wirebench.bench.compressor_memory import Memory, measure_memory
from wirebench.bench.compressor_trial import Stopwatch, run_exchange
from wirebench.bench.compressors import parse_compressor
from wirebench.bench.inputs import BucketInputs, parse_size
from wirebench.bench.plot_compressors import cut_at, figure_of
from wirebench.bench.turns import Bench, Contender, fitting, world_of
from wirebench.compressors import build
from wirebench.figures.style import Figure, panels_of
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Layer
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather, Merge, Route, Sum
from wirebench.record import compressor_results
from wirebench.record.compressor_results import PARTS, CompressorResult, Part

main, plot = verb("bench", "compressors"), verb("bench", "plot-compressors")

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Clock(Stopwatch):
    """A stopwatch whose time passes only where a test says so."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.time = 0.0
        self._now = lambda: self.time


class Scripted(Rival):
    """Asks for everything once, and takes a known time for it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.answers: list[Any] = []
        self.merged: list[torch.Tensor] = []

    def work(self, seconds):
        self.clock.time += seconds

    def combine(self, mine, theirs):
        self.work(1000)
        with phase("select"):  # is part of the merging
            self.work(1000)
        self.merged.append(theirs.clone())
        return mine.add_(theirs)

    def exchange(self, bucket, world):
        self.work(0.5)
        with phase("update"):
            self.work(1)
        with phase("select"):
            self.work(2)
            with phase("encode"):  # inside of another: that one's
                self.work(4)
        self.answers.append((yield Gather(torch.arange(3.0))))
        with phase("encode"):
            self.work(8)
        self.answers.append((yield Merge(torch.ones(2), self.combine)))
        with phase("select"):
            self.work(16)
        self.answers.append((yield Route([torch.full((rank + 1,), float(rank)) for rank in range(world.size)])))
        with phase("decode"):
            self.work(32)
        self.answers.append((yield Sum(torch.ones(5, dtype=torch.uint8))))
        self.work(0.25)
        return bucket.grad


def test_every_second_is_counted_once_and_in_its_place() -> None:
    clock = Clock()
    work = run_exchange(Scripted(clock), whole(torch.ones(10)), ExchangeContext(0, 5), clock)
    # Five ranks: the root of a tree merges three times.
    assert work.seconds == {
        "update": 1, "select": 6, "encode": 8, "recover": 16, "decode": 32, "merge": 6000, "other": 0.75,
    }  # fmt: skip
    assert tuple(work.seconds) == PARTS
    assert sum(work.seconds.values()) == clock.time
    again = run_exchange(Scripted(clock), whole(torch.ones(10)), ExchangeContext(0, 1), clock)
    assert again.seconds["merge"] == 0


def test_a_first_selection_after_a_dense_round_recovers_nothing() -> None:
    bucket = BucketInputs(parse_size("4k"), CPU).bucket(0)
    work = run_exchange(build("topk", density=0.01, dense_below=100), bucket, ExchangeContext(0, 4), Stopwatch(CPU))
    assert work.seconds["recover"] == 0 < work.seconds["select"]


def test_requests_are_answered_as_if_all_ranks_had_sent_the_same() -> None:
    subject = Scripted(Clock())
    work = run_exchange(subject, whole(torch.ones(10)), ExchangeContext(1, 3), subject.clock)
    gathered, merged, routed, summed = subject.answers
    assert [each.tolist() for each in gathered] == [[0, 1, 2]] * 3
    assert merged.tolist() == [3, 3]
    assert [each.tolist() for each in subject.merged] == [[1, 1]] * 2
    assert [each.tolist() for each in routed] == [[1, 1]] * 3
    assert summed.tolist() == [1] * 5
    assert work.message_bytes == 4 * 3 + 4 * 2 + 4 * (1 + 2 + 3) + 5


class Merging(Rival):
    """Hands over the step's number to be merged."""

    def exchange(self, bucket, world):
        return (yield Merge(torch.tensor([float(world.step)]), lambda mine, theirs: torch.cat([mine, theirs])))


def test_a_message_is_merged_with_those_of_the_steps_before() -> None:
    """They stand for other ranks': the newest first, and in their place the step's own where there are none yet."""
    clock, earlier = Clock(), {}  # type: ignore[var-annotated]
    results = [
        run_exchange(Merging(), whole(torch.ones(1)), ExchangeContext(0, 5, step), clock, earlier) for step in range(5)
    ]
    found = [work.result.tolist() for work in results]
    assert found == [[0, 0, 0, 0], [1, 0, 1, 1], [2, 1, 0, 2], [3, 2, 1, 0], [4, 3, 2, 1]]


def test_merging_with_other_places_leaves_entries_of_both() -> None:
    inputs, earlier, method = BucketInputs(parse_size("100k"), CPU), {}, build("gtopk", density=0.01)  # type: ignore[var-annotated]
    results = []
    for step in range(3):
        results.append(
            run_exchange(method, inputs.bucket(step), ExchangeContext(0, 4, step), Stopwatch(CPU), earlier).result
        )
        results[-1] = results[-1].clone()
    assert [result.count_nonzero() for result in results] == [1000] * 3
    assert torch.isin(results[2].nonzero(), results[1].nonzero()).sum() > 100


def test_one_thread_is_timed_by_the_processors_clock() -> None:
    assert Stopwatch(CPU).clock == "processor"
    torch.set_num_threads(2)
    assert Stopwatch(CPU).clock == "wall"


def test_memory_is_every_allocation_at_the_height_of_a_step() -> None:
    def step_of(*, early: bool):
        state = torch.zeros(1000)

        def step():
            if early:
                held = torch.zeros(5000)  # 20,000 bytes, gone before what follows
                del held
            one = state + 1  # 4,000
            torch.sort(one)  # values 4,000, indices 8,000, and 8,000 inside of the operator

        return step

    assert measure_memory(lambda: step_of(early=False), 2, CPU) == Memory(4_000, 28_000)
    assert measure_memory(lambda: step_of(early=True), 0, CPU) == Memory(4_000, 28_000)


def test_buffers_that_are_kept_are_held_and_those_of_early_steps_no_more() -> None:
    def build_step():
        kept: list[torch.Tensor] = []

        def step():
            if len(kept) < 2:
                torch.zeros(100_000)
                kept.append(torch.zeros(250))
            torch.zeros(10)

        return step

    assert measure_memory(build_step, 2, CPU) == Memory(2_000, 2_040)


CELL = CompressorResult(
    "topk", False, "a model", 100, 2,
    seconds={part: (1.0, 1.0, 2.0, 90.0) if part == "select" else (1.0,) * 4 for part in PARTS},
    copy_seconds=(1.0, 0.5, 0.5, 2.0), message_bytes=(8, 8, 8, 8), state_bytes=400, held_bytes=500, peak_bytes=1000,
)  # fmt: skip


def test_what_a_cell_says() -> None:
    # The first and the last turn are left out; the median copy takes 0.75 s.
    assert CELL.parts == {part: 1.5 if part == "select" else 1.0 for part in PARTS}
    assert CELL.total_seconds == 7.5
    assert CELL.copy == 0.75
    assert CELL.total == pytest.approx(7.5 / 0.75)
    assert sum(CELL.copies.values()) == CELL.total
    # Turns over their own copies: 7, 14, 16, 48.
    assert list(CELL.spread) == pytest.approx([9.1, 38.4])
    assert CELL.least == 14
    assert CELL.multiple(CELL.peak_bytes) == 2.5


def test_one_turn_is_enough() -> None:
    cell = dataclasses.replace(CELL, seconds={part: (1.0,) for part in PARTS}, copy_seconds=(2.0,), message_bytes=(8,))
    assert (cell.total, cell.spread, cell.least) == (3.5, (3.5, 3.5), 3.5)


def test_cells_are_read_back(tmp_path: Path) -> None:
    failed = CompressorResult("bad", False, "a model", 100, 2, error="ValueError: x")
    header = {"threads": 1, "workers": 4, "density": None, "device": ""}
    compressor_results.save(tmp_path / "a.jsonl", header, [CELL, failed])
    measured = compressor_results.load(tmp_path / "a.jsonl")
    assert measured.cells == (CELL, failed)
    assert measured.header["threads"] == 1


@pytest.mark.parametrize(
    "content", ["", "x", '{"kind": "wirebench collectives"}', '{"kind": "wirebench compressors"}\n{"items": 3}']
)
def test_other_files_are_refused_by_name(content: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "b.jsonl").write_text(content)
    assert plot([str(tmp_path / "b.jsonl"), "--out", str(tmp_path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "b.jsonl" in line


@pytest.mark.parametrize(
    ("text", "numel", "layers"),
    [("0.27M", 269_722, 59), ("14.7m", 14_728_266, 54), ("25.6m", 25_557_032, 161), ("138m", 138_357_544, 32),
     ("4k", 4000, 2), ("1m", 1_000_000, 1), ("1", 1, 1), ("3", 3, 2)],
)  # fmt: skip
def test_sizes(text: str, numel: int, layers: int) -> None:
    size = parse_size(text)
    assert (size.numel, len(size.layers)) == (numel, layers)
    assert [layer.start for layer in size.layers] == [0, *(layer.stop for layer in size.layers[:-1])]


def test_layers_of_a_model_come_last_first() -> None:
    layers = parse_size("0.27m").layers
    assert layers[0] == Layer("linear.bias", 0, 10, 1, 10)
    assert layers[-1].ndim == 4


def test_gradients_are_heavy_tailed_and_new_at_every_step() -> None:
    inputs = BucketInputs(parse_size("1m"), CPU)
    first = inputs.bucket(0).grad.clone()
    scaled = first.abs() / inputs.scales[0]
    # Student's t, 3 degrees: 13,923 of a million lie beyond 5 in the mean of many; 5 deviations are 620.
    assert 2e6 * 0.0076962 - 620 < (scaled > 5).sum() < 2e6 * 0.0076962 + 620
    assert not torch.equal(inputs.bucket(1).grad, first)
    assert torch.equal(inputs.bucket(1).grad.sort().values, first.sort().values)
    assert torch.equal(inputs.bucket(0).grad, first)
    assert inputs.param.abs().min() > 0


def test_groups_fit_into_memory() -> None:
    able = [(Contender(name, lambda: None), Memory(held, peak))  # type: ignore[arg-type, return-value]
            for name, held, peak in [("a", 4, 6), ("b", 4, 9), ("c", 1, 2), ("d", 50, 60), ("e", 1, 1)]]  # fmt: skip
    # What is held adds up, and of the peaks the highest counts: 4 + 4 + 5.
    assert [[each.name for each in group] for group in fitting(able, 13)] == [["a", "b"], ["c"], ["d"], ["e"]]
    assert [[each.name for each in group] for group in fitting(able, 14)] == [["a", "b", "c"], ["d"], ["e"]]
    assert len(fitting(able, 1000)) == 1


def test_the_fp16_hook_does_what_ddp_would() -> None:
    grad = torch.randn(100)
    before = torch.distributed.all_reduce
    work = run_exchange(rivals(0.1)["DDP fp16"](), whole(grad.clone()), ExchangeContext(0, 4), Stopwatch(CPU))
    assert torch.equal(work.result, grad.half().div(4).float())
    assert work.message_bytes == 200
    assert torch.distributed.all_reduce is before


def test_the_powersgd_hook_compresses_from_the_first_step_on() -> None:
    inputs = BucketInputs(parse_size("10050"), CPU)  # 100 x 100 and a bias of 50
    [make] = [make for name, make in rivals(0.1).items() if "PowerSGD" in name]
    subject = make()
    assert isinstance(subject, DdpHook)
    bucket = inputs.bucket(0)
    grad = bucket.grad.clone()
    work = run_exchange(subject, bucket, ExchangeContext(0, 1), Stopwatch(CPU))
    assert work.message_bytes == 4 * (50 + 100 + 100)
    assert torch.linalg.matrix_rank(work.result[:10_000].view(100, 100)) == 1
    assert torch.equal(work.result[10_000:], grad[10_000:])
    error = subject.state_dict()["0.0"]
    torch.testing.assert_close(error + work.result, grad)


def test_the_sketch_of_torch_is_a_count_sketch() -> None:
    subject = SketchOfTorch(0.05)
    grad = torch.randn(40)
    run_exchange(subject, whole(grad), ExchangeContext(0, 1), Stopwatch(CPU))
    assert subject.hashes["places"].shape == (5, 40)
    assert subject.hashes["places"].max() < 8
    assert set(subject.hashes["signs"].unique().tolist()) == {-1, 1}


# The command line ----------------------------------------------------------------------------------------------------

QUICK = ["--sizes", "4k", "--repeats", "3", "--warmup", "1", "--quiet"]
FAILING = """
from wirebench.bench.baselines import Rival


class Failing(Rival):
    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.at = at

    def exchange(self, bucket, world):
        if world.step >= self.at:
            raise RuntimeError("broken\\nby intent")
        yield from ()
        return bucket.grad
"""


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "brought").mkdir()
    (tmp_path / "brought" / "failing.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    return "brought.failing"


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "cells.jsonl"
    names = ["topk", "topk:values=fp16:dense_below=100", "none", "fp16", "bf16"]
    words = [*QUICK, "--density", "0.01", "--sizes", "4k", "5k", "--json", str(file), "--figures", str(tmp_path)]
    assert main([*words, "--compressors", *names]) == 0
    measured = compressor_results.load(file)
    first = [cell for cell in measured.cells if cell.items == 4000]
    assert [cell.method for cell in first] == [name.replace(":", " ") for name in names] + list(rivals(0.01))
    assert len(measured.cells) == 2 * len(first)
    for cell in measured.cells:
        assert cell.turns == 3
        assert cell.total > 0
        assert not cell.error
        assert cell.peak_bytes is not None
    by_name = {cell.method: cell for cell in first}
    assert by_name["topk"].message_bytes == (8 * 40,) * 3
    assert by_name["topk"].state_bytes == 16_000
    assert by_name["none"].message_bytes == (16_000,) * 3
    assert by_name["topk"].copies["select"] > 0
    assert measured.header["environment"]["threads_per_process"] == measured.header["threads"] == 1
    printed = capsys.readouterr()
    assert "topk values=fp16 dense_below=100" in printed.out
    assert printed.err == ""
    figures = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert figures == ["compressors-4000.svg", "compressors-5000.svg"]
    drawn = (tmp_path / figures[0]).read_bytes()
    assert plot([str(file), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / figures[0]).read_bytes() == drawn


@pytest.mark.parametrize("at", [0, 3])
def test_a_method_that_fails_is_named_and_ends_nothing(
    at: int, failing: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file = tmp_path / "cells.jsonl"
    names = ["none", f"{failing}:at={at}", "topk"]
    assert main([*QUICK, "--no-rivals", "--json", str(file), "--compressors", *names]) == 1
    cells = compressor_results.load(file).cells
    assert [cell.error for cell in cells] == ["", "RuntimeError: broken", ""]
    assert cells[2].turns == 3
    assert capsys.readouterr().err == (
        f"wirebench bench compressors: {failing} at={at} failed on 4k floats: RuntimeError: broken\n"
    )


def test_a_plugin_that_cannot_be_made_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(bench_compressors.compressors, "available", lambda: ["none", "missing"])
    assert main([*QUICK, "--no-rivals"]) == 1
    assert "missing failed on 4k floats: UserError: --compressors: no compressor 'missing'" in capsys.readouterr().err


def test_results_that_are_wrong_are_failures() -> None:
    grad = torch.zeros(3)
    with pytest.raises(ValueError, match="shape"):
        _compressor_turns.check_result(torch.zeros(2), grad)
    with pytest.raises(ValueError, match="not finite"):
        _compressor_turns.check_result(torch.tensor([0.0, torch.nan, 0.0]), grad)


def test_what_was_measured_before_ctrl_c_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    turn, calls = Bench._turn, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 8:  # one turn of two methods is warm-up, the eighth is the second of the fourth turn
            raise KeyboardInterrupt
        turn(self, *arguments)

    monkeypatch.setattr(Bench, "_turn", interrupted)
    file = tmp_path / "cells.jsonl"
    assert main([*QUICK, "--no-rivals", "--json", str(file), "--compressors", "none", "topk"]) == 130
    assert sorted(cell.turns for cell in compressor_results.load(file).cells) == [2, 3]
    printed = capsys.readouterr()
    assert printed.err == "wirebench bench compressors: interrupted; what was measured stays\n"
    assert "topk" in printed.out


def test_options_are_those_of_a_config() -> None:
    assert parse_compressor("topk", 0.25).make().density == 0.25
    contender = parse_compressor("topk:density=0.5:indices=delta", 0.25)
    assert contender.name == "topk density=0.5 indices=delta"
    made = contender.make()
    assert (made.density, made.code.indices) == (0.5, "delta")  # type: ignore[attr-defined]
    assert parse_compressor("topk:warmup=[0.5]", 0.25).make().densities == (0.5,)  # type: ignore[attr-defined]


def test_of_steps_of_several_kinds_all_turns_run_the_usual_one() -> None:
    adam = parse_compressor("zero_one_adam", None).make()
    assert {world_of(adam, number, 4).step for number in range(9)} == {17}, "every second one after it is dense"


@pytest.mark.parametrize("wrapped", ["", ":dense_below=1", ":warmup=[0.5]"])
def test_of_a_method_whose_ranks_take_turns_rank_0_has_every_one(wrapped: str) -> None:
    turns, other = (parse_compressor(name + wrapped, 0.01).make() for name in ("clt_k", "topk"))
    assert [world_of(turns, number, 4).step for number in range(3)] == [0, 4, 8]
    assert [world_of(other, number, 4).step for number in range(3)] == [0, 1, 2]


def test_methods_are_measured_as_they_are_trained() -> None:
    assert parse_compressor("dgc", None).make().numel == 1  # type: ignore[attr-defined]
    assert parse_compressor("dgc:dense_below=0", None).make().inner is None
    assert parse_compressor("topk", None).make().inner is None
    assert [each.name for each in bench_compressors.choose(None, None, False) if "iwp" in each.name] == [
        "iwp threshold=3"
    ]
    assert "iwp threshold=3" in bench_compressors.REMARKS


def test_a_density_for_all_is_not_for_those_with_a_k() -> None:
    assert parse_compressor("gs_sgd:k=10", 0.2).make().k == 10  # type: ignore[attr-defined]


def test_formats_have_no_density(capsys: pytest.CaptureFixture) -> None:
    assert main(["--formats", "--density", "0.1"]) == 2
    assert "--density: is of compressors" in capsys.readouterr().err


def test_without_a_gpu_cuda_is_a_mistake(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


# The figure ----------------------------------------------------------------------------------------------------------


def cell(method: str, seconds: float, rival: bool = False) -> CompressorResult:
    """Half of the time in select, half in decode."""
    both = dict.fromkeys(("select", "decode"), (seconds / 2,))
    parts: dict[Part, tuple[float, ...]] = {part: both.get(part, (0.0,)) for part in PARTS}
    return CompressorResult(method, rival, "a model", 100, 1, parts, (1.0,), (8,), 400, 400, 800)


def order(figure: Figure) -> list[str]:
    """The bars' names from the top, the same in both panels."""
    [shown] = {tuple(unit["encoding"]["y"]["scale"]["domain"]) for unit in charts.units(figure)
               if "scale" in unit["encoding"].get("y", {})}  # fmt: skip
    return list(shown)


def bars(figure: Figure, panel: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Begin and end of every part of every bar."""
    rows = charts.of(panels_of(figure)[panel], "bar")
    return {(row["name"], row["part"]): (row["x"], row["x2"]) for row in rows}


def test_bars_are_stacked_and_the_quickest_is_on_top() -> None:
    cells = [cell("slow", 8), cell("quick", 2), cell("copy", 1), cell("rival", 4, rival=True)]
    figure = figure_of(cells, "4 workers", "a machine; commit abc")
    charts.check(figure)
    assert order(figure) == ["quick", "rival", "slow"]
    assert bars(figure, 0) == {
        ("slow", "select"): (0, 4), ("slow", "decode"): (4, 8), ("rival", "select"): (0, 2),
        ("rival", "decode"): (2, 4), ("quick", "select"): (0, 1), ("quick", "decode"): (1, 2),
    }  # fmt: skip
    assert bars(figure, 1)["slow", "kept"] == (0, 1) and bars(figure, 1)["slow", "during a step"] == (1, 2)
    words = {row["name"]: row["words"] for row in charts.of(panels_of(figure)[0], "text") if "name" in row}
    assert words == {"slow": "8.00", "rival": "4.00", "quick": "2.00"}
    assert "['rival']" in json.dumps(figure.to_dict()), "it is set in italics"
    assert charts.axes(figure, "x") == {"time, copies of the vector", "memory, vectors"}
    assert charts.note(figure) == "4 workers; 1 turn; a machine; commit abc; in italics: for comparison"


def test_a_bar_much_longer_than_the_others_is_cut_off() -> None:
    assert cut_at([1, 2, 3, 4]) == pytest.approx(4.48)
    assert cut_at([1, 2, 3, 4, 4, 4, 4, 50]) == pytest.approx(4.48)
    time = panels_of(figure_of([cell(f"m{n}", 4) for n in range(7)] + [cell("long", 50)]))[0]
    at = {row["words"]: row["x"] for row in charts.of(time, "text")}
    assert at == {"4.00": pytest.approx(4), "50.0": pytest.approx(4.48), "a copy": 1.0}
    [end] = {tuple(unit["encoding"]["x"]["scale"]["domain"]) for unit in charts.units(time)}
    assert end == (0, pytest.approx(4.48))


def test_files_that_were_measured_differently_share_no_figure(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for density in (0.01, 0.02):
        header = {"threads": 1, "workers": 4, "density": density, "device": ""}
        compressor_results.save(tmp_path / f"{density}.jsonl", header, [CELL])
    assert plot([*map(str, sorted(tmp_path.glob("*.jsonl"))), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "wirebench bench plot-compressors: FILES: measured differently: 4 workers, density 0.01, 1 thread; "
        "4 workers, density 0.02, 1 thread\n"
    )


def test_the_figure_of_a_copy_alone_shows_it() -> None:
    assert order(figure_of([cell("copy", 1)])) == ["copy"]


# The table of memory in docs/compressors.md -------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[2] / "docs/compressors.md"
ROW = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| ([\d.]+) \| ([\d.]+) \|", re.MULTILINE)


def memory_table() -> dict[str, tuple[float, float]]:
    """What the page says of each method: kept, at most."""
    text = PAGE.read_text().partition("<!-- memory:begin -->")[2].partition("<!-- memory:end -->")[0]
    rows = [(re.findall(r"\w+", names), float(kept), float(most)) for names, kept, most in ROW.findall(text)]
    return {name: (kept, most) for names, kept, most in rows for name in names}


def test_the_page_tells_the_memory_of_every_method() -> None:
    assert sorted(memory_table()) == bench_compressors.compressors.available()


@pytest.mark.weekly
def test_the_page_tells_the_memory_that_is_measured() -> None:
    inputs, bench = BucketInputs(parse_size("14.7m"), CPU), Bench(CPU, 4, 3, 1, lambda _: None)
    found = {}
    for contender in bench_compressors.choose(None, None, False):
        state, memory = bench._memory(inputs, contender)
        multiples = [num_bytes / (4 * inputs.size.numel) for num_bytes in (state, memory.peak)]
        found[contender.name.split()[0]] = pytest.approx(multiples, abs=0.06)
    assert {name: list(each) for name, each in memory_table().items()} == found
