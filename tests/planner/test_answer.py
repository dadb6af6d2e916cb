"""The three answers of wirebench advise: what may stand in them, on every trace and network; how far it is."""

import io
import json
import math
import re
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.test_advise import answer
from tests.cli.verbs import verb
from wirebench.exchange.pipeline import Step
from wirebench.planner import answer as planner_answer
from wirebench.planner.accuracy import LOSS, Accuracies, Ended
from wirebench.planner.answer import AT_EQUAL_TIME, NO_LOWER, NOTHING, Judge, best_of
from wirebench.planner.candidate import Candidate, speedup
from wirebench.planner.dense import DenseRuns
from wirebench.planner.progress import RankingProgress
from wirebench.planner.rank import Adviser
from wirebench.simulation.simulator import Factors
from wirebench.simulation.trace import SHIPPED

NETWORKS = ("1gbe", "10gbe", "25gbe", "100gbe", "ib200")
LINES = {"free": "free", "nearly free": "nearly_free", "fastest at a cost": "fastest_at_a_cost"}


@pytest.mark.sampled(3)
@pytest.mark.paired
@pytest.mark.parametrize("workers", (8, 64))
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("trace", sorted(path.stem for path in SHIPPED.glob("*.json")))
def test_nothing_that_loses_more_than_is_tolerated_is_first_or_in_the_first_two_lines(
    trace, network, workers, tmp_path, capsys, monkeypatch
):
    """And the printed lines have the numbers of the rows."""
    monkeypatch.setattr(Adviser, "_limit", lambda *_: None)  # break-evens take long, and say nothing here
    found = answer(tmp_path, "--trace", trace, "--network", network, "--workers", str(workers))
    printed = capsys.readouterr().out
    rows = {(row["compressor"], row["scheduler"], row["collective"]): row for row in found["rows"]}
    order = ["within", "costs", "too_much", "unknown"]
    standings = [order.index(row["standing"]) for row in found["rows"]]
    assert standings == sorted(standings) and standings[0] == 0
    for row in found["rows"]:
        if row["standing"] == "within" and row["accuracy"] and row["compressor"] != "none":
            known = row["accuracy"]
            assert max(known["worst_seed_lost"], -known["top1_points"]) <= found["tolerance"] == 0.5
            assert not known["diverged"] and known["options"] is None
    for name, key in LINES.items():
        line, (shown,) = found["answer"][key], re.findall(rf"^{name}  +(.*)$", printed, re.M)
        if "nothing" in line:
            assert shown == line["nothing"]
            continue
        assert line == rows[line["compressor"], line["scheduler"], line["collective"]]
        assert line["standing"] == ("costs" if key == "fastest_at_a_cost" else "within")
        low, high = line["speedup_range"]
        composed = f"{line['compressor']} with {line['scheduler']} on {line['collective']}".replace(
            "none ", "dense ", 1
        )
        close = ", too close to call" if low <= 1 <= high else ""
        close += ", slower than one worker alone" * (line["images_per_second"] < found["one_alone_per_second"])
        assert shown.startswith(composed.split(" with ")[0])
        assert f" with {composed.split(' with ')[1]}: {line['speedup']:.2f}x [{low:.2f} - {high:.2f}]{close}; " in shown
        assert shown.endswith(f"; {line['bytes_per_step']['wire'] / 1e6:.4g} MB a step")
        if line["compressor"] != "none" or line["accuracy"]["schedule"]:
            assert f" {line['accuracy']['top1_points']:+.1f}".replace("-0.0", "+0.0") in shown
            assert f" of {line['accuracy']['of']['words']};" in shown
    assert found["answer"]["free"].get("compressor") in (None, "none", "fp16", "bf16")


def of(name: str, seconds: float, scheduler: str = "wfbp") -> Candidate:
    """A composition whose step takes so long, however long its messages do."""
    step = Step(seconds, 0.0, 0.0, ())
    found: Any = SimpleNamespace(step=step, alone=0.5, compress=0.0, communicate=seconds)
    local = scheduler if scheduler.startswith("outer") else ""
    factors = Factors(1.0, 1.0), Factors(1.0, 1.0)
    return Candidate(name, scheduler, "ring", found, 8, lambda factors: step, factors, local=local)


def test_independent_errors_of_two_steps_add_up_as_squares() -> None:
    def ranged(name: str, low: float, high: float) -> Candidate:
        ends = {0.5: Step(low, 0.0, 0.0, ()), 2.0: Step(high, 0.0, 0.0, ())}
        factors = Factors(0.5, 1.0), Factors(2.0, 1.0)
        return Candidate(name, "wfbp", "ring", of(name, 1.0).found, 8, lambda given: ends[given.messages], factors)

    sure, rough = of("fp16", 0.5), ranged("none", 0.5, 1.5)
    assert rough.expected_seconds == 1 and speedup(sure, rough) == pytest.approx((2.0, 1.0, 3.0))
    both = speedup(ranged("fp16", 0.5, 1.5), rough)
    assert both[0] == 1 and both.low == pytest.approx(math.exp(-math.hypot(math.log(1.5), math.log(2))))
    assert both.high == pytest.approx(1 / both.low) and both.too_close
    assert speedup(rough, rough) == (1, 1, 1), "the same step"


def judge(accuracies: Accuracies, dense: Candidate, *on_noise: str) -> Judge:
    return Judge(accuracies, dense, dense, lambda name: None, on_noise, 0.5)


def test_each_line_has_the_fastest_of_its_kind_that_beats_the_lines_above() -> None:
    plain = of("none", 1.0, "fused")
    known = Accuracies(
        "toy",
        {"fp16": Ended(0.0, None), "mild": Ended(-0.4, None), "harsh": Ended(-3.0, None), "bad": Ended(-9.0, None)},
    )
    every = [of("none", 0.95), of("fp16", 0.7), of("mild", 0.6), of("harsh", 0.5), of("bad", 0.3), of("new", 0.2)]
    made = judge(known, plain)
    assert [line.advice.compressor for line in made.lines(every) if line.advice] == ["fp16", "mild", "harsh"]
    assert [each.compressor for each in best_of(every, made)] == ["mild", "fp16", "none", "harsh", "bad", "new"]
    assert made.reason(every[4]) == "ended at -9.0 points, beyond -5.0" and made.reason(every[3]) is None
    slower = [of("none", 1.0), of("fp16", 0.995), of("mild", 0.994), of("harsh", 0.993), of("new", 0.1)]
    assert [line.nothing for line in made.lines(slower)] == [
        "nothing beats DDP's schedule of dense gradients", NOTHING, NOTHING,
    ]  # fmt: skip
    noisy = judge(known, plain, "mild")
    assert noisy.lines(every)[1].nothing == NOTHING and noisy.reason(every[2]) == "was timed on noise alone"


def test_a_language_models_methods_stand_by_their_loss_in_as_much_time(monkeypatch) -> None:
    """Dense training in less time ends higher, here by the fourth root; what is fast and learns little stands last."""

    def reached(forms: object, step: float, dense: float, alone: float) -> tuple[float, bool]:
        return (step / dense) ** -0.25, step > 0.1

    monkeypatch.setattr(planner_answer, "reached", reached)
    known = Accuracies(
        "toy",
        {"bf16": Ended(0.0, None, measure=LOSS), "fast": Ended(-90.0, None, measure=LOSS)},
        {"none": [Ended(-20.0, None, None, LOSS, "outer")]},
        LOSS,
        200.0,
        (DenseRuns("dense", 1, 1, (1.0,), False, True),),
    )
    plain = of("none", 1.0, "fused")
    every = [plain, of("bf16", 0.6), of("fast", 0.05), of("none", 0.2, "outer")]
    made = judge(known, plain)
    slow, fast = made.in_time(every[3]), made.in_time(every[2])
    assert slow and fast and (slow[1], fast[1]) == (True, False)
    assert [slow[0], fast[0]] == pytest.approx([1.2 * 0.2**0.25, 1.9 * 0.05**0.25])
    assert [each.compressor for each in best_of(every, made)] == ["bf16", "none", "none", "fast"]
    free, nearly, fastest = made.lines(every)
    assert free.advice is every[1] and nearly.nothing == NOTHING and fastest.advice is every[3]
    worse = [plain, of("bf16", 0.3), of("none", 0.29, "outer")]
    last = made.lines(worse)[2]
    assert (last.name, last.nothing) == (AT_EQUAL_TIME, NO_LOWER), "faster, and at equal time not better"


@pytest.mark.slow
def test_a_language_model_is_advised_by_the_loss_of_the_nearest_size(tmp_path, capsys):
    gpt = ["--model", "gpt", "--data", "python_sources", "--batch", "8", "--gpu", "h200", "--workers", "8"]
    small = [word for option in ("depth=2", "width=56", "heads=2") for word in ("--option", option)]
    few = ["--network", "1gbe", "--gbit", "0.1", "--compressors", "bf16", "quantised_sum", "powersgd"]
    found = answer(tmp_path, *gpt, *small, *few)
    of_model = {row["accuracy"]["of"]["near"] for row in found["rows"] if row["accuracy"]}
    assert of_model == {True}
    line = re.search(r"^lowest loss at equal time +(.*)$", capsys.readouterr().out, re.M)
    assert line and re.search(r"loss \d\.\d{3} \[\d\.\d{3} - \d\.\d{3}\]x at equal tokens, ", line[1])
    assert ", of a GPT of 0.098M parameters, 20.0 tokens a parameter; " in line[1]
    larger = answer(tmp_path, *gpt, "--option", "width=384", *few)
    printed = capsys.readouterr().out
    below = printed[printed.index(" compressor ") :].splitlines()
    table = list(takewhile(lambda line: not line[:1].isalpha(), below))  # what it rests on follows, a sentence a line
    assert len(table) > 4 and max(map(len, table)) <= 120
    line = re.search(r"^lowest loss at equal time +(.*)$", printed, re.M)
    assert line and re.search(
        r"loss \d\.\d{3}x at equal tokens, (at most )?\d\.\d{3}x at equal time, of a GPT", line[1]
    )
    costs = [row["accuracy"]["loss_ratio_in_time"] for row in larger["rows"] if row["standing"] == "costs"]
    assert costs == sorted(costs) and len(costs) > 2
    powersgd = next(row for row in larger["rows"] if row["compressor"] == "powersgd")
    assert powersgd["speedup"] == max(row["speedup"] for row in larger["rows"] if row["scheduler"] != "outer")
    assert larger["answer"]["fastest_at_a_cost"]["compressor"] != "powersgd"


INT8 = "quantised_sum:feedback=false:form=int8"
OF_GPT = [
    "--model", "gpt", "--data", "python_sources", "--option", "depth=2", "--batch", "8", "--gpu", "h200",
    "--network", "1gbe", "--schedulers", "fused", "--workers",
]  # fmt: skip


def test_a_format_that_was_trained_is_ranked_beside_its_compressors_own(tmp_path, capsys):
    found = answer(tmp_path, *OF_GPT, "4")
    rows = {row["compressor"]: row for row in found["rows"]}
    eight, four, dense = rows[INT8], rows["quantised_sum"], rows["none"]
    nearly = found["answer"]["nearly_free"]["compressor"]
    assert eight["standing"] == "within" and nearly.startswith("quantised_sum:"), "with fewer bytes than the casts"
    settings = {"compressor.name=quantised_sum", "compressor.feedback=false", "compressor.form=int8"}
    assert settings < {*eight["overrides"]} and len(eight["overrides"]) == 5
    wire = [row["bytes_per_step"]["wire"] for row in (four, eight, dense)]
    assert wire[0] < 0.6 * wire[1] and wire[1] == pytest.approx(wire[2] / 4, rel=0.05)
    assert f"{INT8} is taken to work as long as quantised_sum, which" in capsys.readouterr().out
    named = answer(tmp_path, *OF_GPT, "4", "--compressors", "quantised_sum:form=int8:feedback=false:rounding=nearest")
    [again] = [row for row in named["rows"] if row["compressor"] != "none"]
    assert again == eight, "options stand in one order, without those that are the compressor's own anyway"


def test_options_of_a_compressor_count_in_a_ranking_and_in_a_simulation(tmp_path):
    where = ["--trace", "resnet20_gtx1080ti", "--workers", "4"]
    found = answer(tmp_path, *where, "--schedulers", "fused", "--compressors", "topk", "topk:density=0.1")
    usual, more = (
        next(row for row in found["rows"] if row["compressor"] == name) for name in ("topk", "topk:density=0.1")
    )
    assert (usual["density"], more["density"]) == (0.01, 0.1) and "compressor.density=0.1" in more["overrides"]
    assert more["bytes_per_step"]["wire"] == pytest.approx(10 * usual["bytes_per_step"]["wire"], rel=0.1)
    sent = []
    for words in (["topk", "--density", "0.1"], ["topk:density=0.1"]):
        path = tmp_path / "simulated.json"
        assert verb("simulate")([*where, "--schedulers", "wfbp", "--json", str(path), "--compressor", *words]) == 0
        sent.append(json.loads(path.read_text())["rows"][0]["bytes_per_step"])
    assert sent[0] == sent[1]


def test_a_density_that_no_compressor_takes_is_refused(capsys):
    where = ["--trace", "resnet20_gtx1080ti", "--workers", "4", "--density", "0.5", "--compressors", "topk:density=0.1"]
    assert verb("advise")(where) == 2
    assert "--density: 'none', 'topk:density=0.1': none has one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("quantised_sum:form=int3", "--compressors quantised_sum:form: "),
        ("quantised_sum:bits=8", "--compressors quantised_sum:bits: 'quantised_sum' has no such option"),
        ("quantised_sum:form", "--compressors: cannot read 'quantised_sum:form'; it reads name:key=value"),
        ("quantised_sums:form=int8", "--compressors: no 'quantised_sums'; did you mean 'quantised_sum'"),
        ("topk:warmup=[0.5]", "--compressors: 'topk:warmup=[0.5]': warmup goes into the config of a run"),
        ("powersgd:rank=0", "--compressors powersgd:rank"),
    ],
)
def test_words_that_make_no_compressor_are_one_line(words, said, capsys):
    assert verb("advise")(["--trace", "resnet20_gtx1080ti", "--workers", "4", "--compressors", words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_how_far_it_is_is_told_after_a_while() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    times = iter([0.0, 1.9, 2.0, 2.0, 2.05, 2.2, 2.2])
    shown = Terminal()
    progress = RankingProgress(shown, lambda: next(times))
    for done in range(4):
        progress.tell(f"simulating: {done} of 4 compressors")
    progress.close()
    progress.close()
    line = "\r\x1b[K"
    assert shown.getvalue() == f"{line}simulating: 1 of 4 compressors{line}simulating: 3 of 4 compressors{line}"
    plain, seconds = io.StringIO(), iter([0.0, 1.0, 3.0, 3.0, 7.0, 8.5, 8.5])
    progress = RankingProgress(plain, lambda: next(seconds))
    for done in range(4):
        progress.tell(f"{done} of 4")
    progress.close()
    assert plain.getvalue() == "1 of 4\n3 of 4\n"


def test_the_head_is_four_lines_and_wide_has_the_sources(tmp_path, capsys):
    where = ["--trace", "resnet20_gtx1080ti", "--workers", "4", "--schedulers", "wfbp", "--compressors", "fp16"]
    path = tmp_path / "found.json"
    assert verb("advise")([*where, "--json", str(path)]) == 0
    short = capsys.readouterr().out.splitlines()
    assert short.index("") == 4 and not any("data sheet" in line for line in short)
    assert [line.split("  ")[0] for line in short[5:8]] == list(LINES)
    assert verb("advise")([*where, "--wide"]) == 0
    wide = capsys.readouterr().out
    assert json.loads(path.read_text())["trace"]["source"] in wide and "Ranges: exchanges of " in wide
    heads = ["img/s", "wire MB", "exposed"]
    assert all(head in wide for head in heads) and not any(head in "\n".join(short[8:]) for head in heads)


def test_the_losses_that_count_first_are_named_first_whatever_the_size(capsys):
    """lion_sign was trained in the other study alone, whose model is nearer in size to this one."""
    few = ["--compressors", "bf16", "lion_sign", "--schedulers", "single", "--workers", "4", "--batch", "2"]
    small = ["--data", "python_sources:train_bytes=100000:length=32", "--option", "depth=2", "--option", "width=256"]
    assert verb("advise")(["--model", "gpt", "--gpu", "a100", *small, *few]) == 0
    (head,) = re.findall(r"^loss: as .*", capsys.readouterr().out, re.M)
    assert head.index("0.098M") < head.index(", else of") < head.index("1.9M")
