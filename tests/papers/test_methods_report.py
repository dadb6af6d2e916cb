"""wirebench study speed report on records made up so that the answers are known."""

import argparse
import re
from pathlib import Path

import pytest

from papers.accuracy.known import of_classics
from papers.rows import load
from papers.speed import by_link
from papers.speed.report import FIRST, figure
from papers.study import Study
from tests import charts
from tests.papers import verb
from tests.papers.records import doctor, unlinked
from tests.papers.test_methods_run import put, record
from tests.record.gpus import RANK_0, all_ranks

pytestmark = pytest.mark.sampled(4)

main = verb.report("speed")


def report(folder: Path) -> tuple[str, list[list[str]]]:
    """The table's text, and the cells of its first table's rows, but for the last, which is the code without loss."""
    assert main([str(folder)]) == 0
    text = unlinked((folder / "table.md").read_text())
    *lines, bar = text.partition("| method ")[2].partition("\n\n")[0].splitlines()[2:]
    assert re.search(r"^\| fp32 without loss \|.* 1[.]17x \|", bar)
    return text, [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_the_report_has_medians_over_turns(tmp_path: Path) -> None:
    for turn, seconds in enumerate((0.8, 1.0, 1.2)):
        put(tmp_path, "dense", turn, record("none", seconds))
    for turn, slower in enumerate((1.0, 1.1)):
        put(tmp_path, "gs_sgd", turn, record("gs_sgd", 0.5 * slower))
        put(tmp_path, "sketched_sgd", turn, record("sketched_sgd", 0.65 * slower))
    put(tmp_path, "gtopk", 0, record("gtopk", 0.25))
    table, rows = report(tmp_path)
    assert [row[0].split()[0] for row in rows] == ["gtopk", "gs_sgd", "sketched_sgd", "dense"]
    assert rows[3][1:4] == ["1000 [720 - 1440]", "1.00", "-"]
    assert "Everything but the compressors is slowed down 10 times" in table
    assert (tmp_path / "steps.svg").read_bytes().startswith(b"<svg")
    drawn = figure(load(tmp_path))
    charts.check(drawn)
    totals = {row["name"]: row["total"] for row in charts.of(drawn, "bar")}
    assert totals == {name: pytest.approx(ms) for name, ms in
                      {"gtopk": 250, "gs_sgd": 525, "sketched_sgd": 682.5, "dense": 1000}.items()}  # fmt: skip
    [whisker] = [row for row in charts.of(drawn, "rule") if row.get("name") == "dense"]
    assert (whisker["low"], whisker["high"]) == (pytest.approx(720), pytest.approx(1440))
    assert charts.titles(drawn)[0].startswith("Compressors, time per step: ") and "4 hosts" in charts.titles(drawn)[0]
    assert "1 to 3 turns each" in charts.note(drawn) and charts.axes(drawn, "x") == {"time per step, ms"}


def test_the_studys_finding_leads_one_table_whatever_is_asked_for() -> None:
    study = Study("speed")
    for folders in ([FIRST, FIRST.with_name("vgg16")], [FIRST.with_name("vgg16"), FIRST]):
        pages = study.pages(argparse.Namespace(folders=folders))
        assert [study.published.finding in page.text for page in pages] == [folder == FIRST for folder in folders]


def test_steps_are_compared_with_the_fastest_dense_row_and_with_ddp(tmp_path: Path) -> None:
    put(tmp_path, "dense", 0, record("none", 1.25))
    put(tmp_path, "dense, one message", 0, record("none", 1.0))
    put(tmp_path, "DDP", 0, record("none", 0.8))
    put(tmp_path, "topk", 0, record("topk", 0.4))
    text, rows = report(tmp_path)
    assert {row[0].partition(" (")[0]: row[2:4] for row in rows} == {
        "topk": ["0.40", "0.50"],
        "DDP": ["0.80", "1.00"],
        "dense, one message": ["1.00", "1.25"],
        "dense": ["1.25", "1.56"],
    }
    assert "the fastest dense row (`dense, one message`)" in text


def test_runs_on_gpus_have_their_energy(tmp_path: Path) -> None:
    for turn, joules in enumerate((1.0, 2.0)):
        put(tmp_path, "dense", turn, record("none", 0.5) | {"gpu": all_ranks(joules_per_sample=joules)})
    put(tmp_path, "gs_sgd", 0, record("gs_sgd", 0.6) | {"gpu": RANK_0, "steps_done": 60})
    put(tmp_path, "gtopk", 0, record("gtopk", 0.7))
    text, rows = report(tmp_path)
    assert "| state | joules per sample | joules per point of top-1 |" in text
    assert [row[-2:] for row in rows][::2] == [["1.5", "240"], ["-", "-"]]
    assert rows[1][-2].endswith(" (rank 0 only)") and rows[1][-1] == "-"
    for name in ("dense-0", "dense-1", "gs_sgd-0"):
        doctor(tmp_path / name / "record.json", lambda found: found.update(gpu=None))
    assert "joules" not in report(tmp_path)[0]


def test_a_dense_row_that_diverged_is_no_measure(tmp_path: Path) -> None:
    put(tmp_path, "dense", 0, record("none", 1.0))
    put(tmp_path, "dense, one message", 0, {**record("none", 0.5), "status": "diverged"})
    assert [row[2] for row in report(tmp_path)[1]] == ["0.50", "1.00"]


def test_what_the_interface_carried_beyond_the_wire_is_flagged(tmp_path: Path) -> None:
    put(tmp_path, "topk", 0, record("topk", 0.1, wire=1e6, nic=1.0129e6))
    put(tmp_path, "dgc", 0, record("dgc", 0.2, wire=2e4, nic=3.17e4))
    put(tmp_path, "gtopk", 0, record("gtopk", 0.3, wire=1e6, nic=0.97e6))
    text, rows = report(tmp_path)
    assert [row[11:13] for row in rows] == [["1.003", "2.9 kB"], ["1.085 !", "1.7 kB"], ["0.960 !", "-40 kB"]]
    assert "beyond 3 % of `wire` in 2 of 3 rows, marked !, by -40 kB to 1.7 kB" in text


def test_a_record_without_counted_steps_has_gaps(tmp_path: Path) -> None:
    gone = {**record("gs_sgd", 0.5), "status": "diverged"}
    gone["step_seconds"] = dict.fromkeys(("median", "p10", "p90"))
    gone["phases"] = dict.fromkeys(gone["phases"])
    gone["bytes_per_step"] = dict.fromkeys(("payload", "dense", "wire", "nic"))
    gone["compression_ratio"] = dict.fromkeys(gone["compression_ratio"])
    del gone["compressor_state"], gone["environment"]["git"], gone["environment"]["cpu"]
    put(tmp_path, "gs_sgd", 0, gone)
    [row] = report(tmp_path)[1]
    assert row[:4] + row[5:] == ["gs_sgd (diverged) (mg_wfbp, ring)", *["-"] * 13]
    assert row[4] == of_classics().known["gs_sgd"].cell  # of other runs
    put(tmp_path, "gtopk", 0, record("gtopk", 0.5))
    assert [row[0].split()[0] for row in report(tmp_path)[1]] == ["gtopk", "gs_sgd"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "methods-resnet20"}, "name is 'methods-vgg16' in dense-0 and 'methods-resnet20' in topk-0"),
        ({"train": {"max_steps": 9, "seed": 1}}, "train.max_steps is 26 in dense-0 and 9 in topk-0"),
        ({"optimizer": {"momentum": 0.0, "lr": 2.0}}, "optimizer.lr is 1.0 in dense-0 and 2.0 in topk-0"),
    ],
)
def test_a_report_of_several_settings_is_refused(
    change: dict, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [record("none", 1.0), record("topk", 1.0)]
    for each in made:
        each["config"] |= {"train": {"max_steps": 26, "seed": 0}, "optimizer": {"momentum": 0.9, "lr": 1.0}}
    made[1]["config"] |= change
    put(tmp_path, "dense", 0, made[0])
    put(tmp_path, "topk", 0, made[1])
    assert main([str(tmp_path)]) == 2
    assert f"{tmp_path}: mixes settings: {said}\n" in capsys.readouterr().err


def test_what_is_a_methods_own_may_differ(tmp_path: Path) -> None:
    other = record("dgc", 1.0)
    other["config"] |= {"scheduler": {"name": "fused"}, "collective": {"name": "tree"}, "output": {"trace_steps": 0}}
    other["config"] |= {"train": {"seed": 1}, "optimizer": {"momentum": 0.0}}
    first = record("none", 1.0)
    first["config"] |= {"train": {"seed": 0}, "optimizer": {"momentum": 0.9}, "output": {"trace_steps": 3}}
    put(tmp_path, "dense", 0, first)
    put(tmp_path, "dgc", 0, other)
    assert len(report(tmp_path)[1]) == 2


def test_a_report_of_several_clusters_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "dense", 0, record("none", 1.0))
    put(tmp_path, "topk", 0, record("topk", 1.0), link="100mbit")
    assert main([str(tmp_path)]) == 2
    assert "link is '1gbit' in dense-0 and '100mbit' in topk-0" in capsys.readouterr().err


def test_folders_that_differ_in_their_link_alone_are_compared_by_link(tmp_path: Path) -> None:
    for link, gain in (("100mbit", 4.0), ("1gbit", 1.5)):
        folder = tmp_path / f"vgg16-{link}"
        for turn, slower in enumerate((1.0, 1.02, 0.98)):
            put(folder, "dense", turn, record("none", slower), link=link)
            put(folder, "topk", turn, record("topk", slower / gain), link=link)
    other = record("none", 1.0)
    other["config"]["data"] = {"batch_size": 7}
    put(tmp_path / "other", "dense", 0, other, link="1gbit")
    folders = [tmp_path / name for name in ("vgg16-1gbit", "other", "vgg16-100mbit")]
    alone = [report(folder) and (folder / "table.md").read_text() for folder in folders]
    assert main([*map(str, folders)]) == 0
    assert [(folder / "table.md").read_text() for folder in folders] == alone, "whatever else is asked for"
    text = unlinked((tmp_path / "by_link" / "table.md").read_text())
    assert "| method | [0.1 Gbit/s](../vgg16-100mbit/table.md) | [1 Gbit/s](../vgg16-1gbit/table.md) |" in text
    assert "| dense, ms a step | 1000 | 1000 |" in text
    assert "| topk | 4.00x [4.00 to 4.00] | 1.50x [1.50 to 1.50] |" in text
    drawn = by_link.page([tmp_path / "vgg16-100mbit", tmp_path / "vgg16-1gbit"]).figures[by_link.FIGURE]
    assert drawn is not None
    charts.check(drawn)
    assert by_link.groups([tmp_path / "vgg16-1gbit", tmp_path / "other"]) == []
