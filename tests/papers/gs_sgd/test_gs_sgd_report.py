"""wirebench study gs_sgd report on records made up so that the answers are known."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from papers.accuracy.rows import MethodRuns
from papers.claim import State
from papers.findings import Finding
from papers.gs_sgd.claims import findings, model_of, of_epochs, of_runs, of_sweeps
from papers.gs_sgd.throughput import section
from papers.gs_sgd.variants import swept
from papers.rows import load
from tests.papers import verb
from tests.papers.test_methods_run import put, record
from wirebench.record.notes import NotedRun

pytestmark = pytest.mark.sampled(3)

main = verb.report("gs_sgd")
STEPS = {"gtopk": 0.30, "gs_sgd literal": 0.50, "gs_sgd": 0.20, "sketched_sgd literal": 0.65, "gtopk 16 bytes": 0.6}
TRACES = {"ResNet-20": "resnet20_gtx1080ti", "VGG-16": "vgg16_cifar_gtx1080ti"}


def runs(folder: Path, model: str = "VGG-16", turns: int = 5, exchange: float = 0.3) -> Path:
    """Five turns of some readings; every turn is slower than the one before, all methods alike."""
    for label, seconds in STEPS.items():
        for turn in range(turns):
            made = record(label.split()[0], seconds * (1 + 0.1 * turn))
            made["config"]["model"]["trace"] = TRACES[model]
            rival = label.startswith("sketched")
            made["phases"] |= {"exchange_exposed": 0.1 + (exchange if rival else 0.1)}
            made["requests"] = [
                {"kind": "Sum", "plan": "tree", "rounds": 4, "bytes": 10**6, "payload_bytes": 10**6, "seconds": 0.1}
            ]
            put(folder, label, turn, made)
    return folder


def states(found: list[Finding]) -> dict[str, State]:
    return {each.claim.id: each.verdict.state for each in found}


def test_a_claim_is_judged_by_the_methods_as_printed_and_other_readings_stand_beside(tmp_path: Path) -> None:
    found = findings(load(runs(tmp_path)))
    by_id = {each.claim.id: each for each in found}
    assert states(found) == {
        "vgg16_over_gtopk": "not decidable", "vgg16_over_sketched_sgd": "direction reproduced",
        "range_over_gtopk": "not decidable", "range_over_sketched_sgd": "direction reproduced",
    }  # fmt: skip
    # The ratios of all turns are alike. Readings: 0.3 or 0.6 s of gTop-k over 0.5 or 0.2 s of gs-SGD.
    assert by_id["vgg16_over_gtopk"].here.startswith("0.60x [0.60 to 0.60]; 900 kB against 900 kB, 1.00x by bytes")
    assert by_id["vgg16_over_gtopk"].here.endswith("; 0.60x to 3.00x in 4 readings")
    assert "1.30x [1.30 to 1.30]" in by_id["vgg16_over_sketched_sgd"].here
    assert len(by_id["vgg16_over_sketched_sgd"].records) == 10


def test_a_method_as_printed_that_diverged_judges_nothing(tmp_path: Path) -> None:
    runs(tmp_path)
    put(tmp_path, "gs_sgd literal", 5, {**record("gs_sgd", 0.1), "status": "diverged"})
    assert findings(load(tmp_path)) == []


def test_both_networks_together(tmp_path: Path) -> None:
    rows = {name: load(runs(tmp_path / name, name, exchange=share)) for name, share in
            (("VGG-16", 0.3), ("ResNet-20", 0.6))}  # fmt: skip
    assert "average_over_gtopk" not in states(of_runs({"VGG-16": rows["VGG-16"]}))
    found = {each.claim.id: each for each in of_runs(rows)}
    assert found["average_over_gtopk"].here == "0.60x [0.60 to 0.60]"
    assert found["communication_vgg16"].here == "3.00x [3.00 to 3.00]"
    assert found["communication_especially"].here == "2.00x [2.00 to 2.00]"
    assert found["communication_especially"].verdict.state == "direction reproduced", "the paper states no k"


def test_the_table_has_what_messages_alone_would_allow(tmp_path: Path) -> None:
    lines = section("VGG-16", load(runs(tmp_path)))
    cells = {row[0]: row for row in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[4:]) if row}
    printed = cells["gs_sgd literal"]
    # 1 MB twice up and twice down at 1 Gbit/s with the start-up time of Ethernet, in segments.
    assert printed[3:7] == ["600 ms", "40 ms", "100 ms", "1 MB"]
    messages = float(printed[7].split()[0])
    assert 16 < messages < 33
    rate = record("gs_sgd", 0.5)["images_per_second"]["median"]
    assert float(printed[8].replace(",", "")) == pytest.approx(rate * 600 / (40 + messages), rel=0.02)
    assert cells["gtopk"][2] == "325" and printed[2] == "-"
    assert cells["gtopk"][9] == "-" and printed[9] == "0.60x [0.60 to 0.60]"
    assert section("VGG-16", [row for row in load(tmp_path) if row.label == "none"]) == []


def test_the_report_has_every_claim_and_a_figure_for_each_network(tmp_path: Path) -> None:
    runs(tmp_path / "runs/vgg16")
    where = ["--runs", str(tmp_path / "runs"), "--trainings", str(tmp_path / "none"), "--dir", str(tmp_path / "out")]
    assert main(where) == 2, "there is no such folder"
    (tmp_path / "none").mkdir()
    assert main(where) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert text.count("not run here") >= 10 and "## VGG-16" in text and "## ResNet-20" not in text
    assert (tmp_path / "out/fig5.svg").read_bytes().startswith(b"<svg")


def curve(
    epochs: int, rising: int, dip: int | None = None, schedule: str = "step", falls: Sequence[float] = (81.0, 122.0)
) -> dict:
    """A training whose accuracy rises for so many epochs and then stays, but for a dip."""
    made = record("gs_sgd", 0.5)
    made["config"]["model"] = {"name": "resnet_cifar", "depth": 20}
    made["config"]["train"] = {"epochs": epochs}
    made["config"]["optimizer"] = {"schedule": schedule, "milestones": list(falls)}
    made["history"] = [
        {"epoch": epoch, "top1": 0.5 if epoch == dip else 0.9 - 0.01 * max(0, rising - epoch - 1)}
        for epoch in range(epochs)
    ]
    return made


def trained(folder: Path, label: str, *made: dict) -> MethodRuns:
    for seed, each in enumerate(made):
        each["config"]["train"]["seed"] = seed
    return MethodRuns(label, tuple(NotedRun(folder / f"{label}-{seed}", {}, each) for seed, each in enumerate(made)))


def test_how_soon_a_method_converges_is_told_by_runs_as_long_as_the_papers(tmp_path: Path) -> None:
    ours = trained(tmp_path, "gs_sgd", curve(140, 70), curve(140, 68), curve(140, 75))
    other = trained(tmp_path, "gtopk", curve(140, 70), curve(140, 70, dip=99), curve(140, 70, dip=110))
    found = {each.claim.id: each for each in of_epochs([ours, other], "resnet20")}
    assert found["epochs"].here == "71.0 epochs [62.0 to 80.0] (3 seeds)"
    assert found["epochs_gtopk"].here == "94.3 epochs [40.2 to 148.4] (3 seeds)"
    assert {each.verdict.state for each in found.values()} == {"not decidable"}, "the paper states no learning rate"
    assert not any(rule.startswith(("seeds", "load")) for rule in found["epochs"].rules)
    cut = curve(140, 70)
    cut["config"]["train"]["max_steps"] = 200
    longer, early = curve(200, 70), curve(140, 70, falls=(30, 60))
    for short in (curve(10, 9), curve(140, 70, schedule="one_cycle"), cut, longer, early):
        assert list(of_epochs([trained(tmp_path, "gs_sgd", short)], "resnet20")) == []


@pytest.mark.parametrize("what", ["k", "columns"])
def test_the_damaging_number_is_judged_by_the_sweep_of_what_it_may_be(what: str, tmp_path: Path) -> None:
    few, many = (
        trained(
            tmp_path,
            swept(what, value),
            *({**curve(10, 9), "final": {"top1": top1 + 0.001 * seed}} for seed in range(3)),
        )
        for value, top1 in ((10_000, 0.8), (50_000, 0.9))
    )
    assert list(of_sweeps([many], "resnet20")) == []
    [found] = of_sweeps([few, many], "resnet20")
    assert (found.claim.id, found.verdict.state) == ("k_10000", "not decidable")
    assert found.about == f"{what} of 10,000 against 50,000, resnet20"
    assert found.here.startswith("10.00 points below [") and found.verdict.why.startswith("the paper states neither")


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ({"name": "replay", "trace": "resnet20_gtx1080ti"}, "ResNet-20"),
        ({"name": "resnet_cifar", "depth": 20}, "ResNet-20"),
        ({"name": "resnet_cifar", "depth": 56}, None),
        ({"name": "replay", "trace": "resnet50_gtx1080ti"}, None),
        ({"name": "vgg16"}, None),
    ],
)
def test_claims_are_about_the_papers_models_alone(model: dict, known: str | None, tmp_path: Path) -> None:
    assert model_of(model) == known
    for name, seconds in (("gs_sgd literal", 0.5), ("gtopk", 0.6)):
        made = record(name.split()[0], seconds)
        made["config"]["model"] = model
        put(tmp_path, name, 0, made)
    assert bool(findings(load(tmp_path))) is (known is not None)
