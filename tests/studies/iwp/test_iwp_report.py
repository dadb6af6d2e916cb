"""wirebench study iwp report: the paper's numbers beside records made up so that the verdicts are known."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from suite.compose.resolve import resolve
from suite.studies.iwp import imagenet, report
from suite.studies.iwp.claims import CLAIMED, united
from suite.studies.iwp.measured import Counted
from suite.studies.notes import NotedRun
from suite.studies.study import Study
from tests.flexreduce import run_record
from tests.studies import verb
from wirebench.config import loader

pytestmark = pytest.mark.sampled(4)

LONG = 3120


def counted(density: float, with_masks: float, age: float = 1.0, steps: int = 30) -> dict[str, Any]:
    """A run of IWP with two voters' bitmaps."""
    made = run_record("2+2")
    made["config"]["compressor"] = {"name": "iwp", "voters": 2, "masks": "bits"}
    made["compression_ratio"]["wire"] = 2 * with_masks
    made["steps_done"] = steps
    readings = {
        "density": density,
        "ratio_with_masks": with_masks,
        "mask_bytes": 1e3,
        "waiting_mean": age,
        "waiting_max": 9 * age,
    }
    made["health"] = {f"compressor/{name}": {"mean": value, "last": value} for name, value in readings.items()}
    return made


def sending(megabytes: float) -> dict[str, Any]:
    """A run whose hosts send so much in a second."""
    made = run_record("2+2")
    made["images_per_second"]["mean"] = 16.0  # a step a second: 4 workers of 4 images
    made["bytes_per_step"]["nic"] = 1e6 * megabytes
    return made


def put(out: Path, part: str, label: str, made: dict[str, Any], turn: int = 0, link: str = "10mbit") -> None:
    folder = out / part / f"{label.replace(' ', '_')}-{turn}"
    folder.mkdir(parents=True)
    note: dict[str, Any] = {"label": f"{part}, {label}", "launch": "python train.py"}
    if part == "network":
        note |= {"hosts": 4, "link": link}
    (folder / "record.json").write_text(json.dumps(made))
    (folder / "method.json").write_text(json.dumps(note))


def states(out: Path) -> dict[tuple[str, str], str]:
    """Of every claim that something was measured of: the verdict, by the claim and by what it is of."""
    parser = argparse.ArgumentParser()
    report.flags(parser)
    found = report.findings(parser.parse_args(["--runs", str(out), "--trainings", str(out / "none")]))
    assert {each.claim.id for each in found} == set(CLAIMED), "every claim has a line"
    return {(each.claim.id, each.about): each.verdict.state for each in found if each.verdict.measured is not None}


def test_a_claim_that_is_not_run_has_a_command_that_makes_sense() -> None:
    commands = [claim.command for claim in CLAIMED.values() if "train.py" in claim.command]
    assert len(commands) == 8
    for command in commands:
        config, *overrides = command.partition("train.py ")[2].split()
        resolve(loader.load(config, overrides))
    assert all(claim.not_run and claim.command for claim in CLAIMED.values() if "accuracy" in claim.id)


def test_masks_never_add_to_a_ratio_whatever_its_course() -> None:
    """Half of a run sends 1 %, the other half all: the mean of the ratios would be above 1 / density."""
    made = counted(1.0, 1 / (1 + 1 / 16))
    made["health"]["compressor/density"]["mean"] = 0.5
    made["health"]["compressor/ratio_with_masks"]["mean"] = 7.0
    row = Counted(NotedRun(Path(), {"label": "alexnet, fixed 0.1"}, made))
    assert row.values == 2
    assert row.as_sent == pytest.approx(1 / (0.5 + 1 / 16))


def test_masks_forbid_the_ratio_that_values_alone_may_have(tmp_path: Path) -> None:
    put(tmp_path, "alexnet", "fixed 0.1", counted(1 / 64, 12.8))
    put(tmp_path, "alexnet", "layer-wise", counted(1 / 20, 9.0))
    found = states(tmp_path)
    assert found["alexnet_fixed_ratio", "alexnet, fixed 0.1, values only"] == "reproduced"
    assert found["alexnet_fixed_ratio", "alexnet, fixed 0.1, with masks"] == "contradicted"
    assert found["alexnet_layerwise_ratio", "alexnet, layer-wise, values only"] == "direction reproduced"
    assert found["densifies", ""] == "reproduced"
    assert not any(claim.startswith("resnet50") for claim, _ in found)
    assert verb.report("iwp")(["--runs", str(tmp_path), "--trainings", str(tmp_path / "none")]) == 0
    assert "| fixed 0.1 | 64.00x | 12.80x | 25.60x | 16x | 1.56 |" in (tmp_path / "alexnet" / "table.md").read_text()
    assert "R/32 of the gradient" in (tmp_path / "table.md").read_text()


def test_of_a_study_that_is_half_measured_what_is_there_is_judged(tmp_path: Path) -> None:
    put(tmp_path, "alexnet", "dgc 0.1%", counted(0.001, 400.0))
    put(tmp_path, "alexnet", "terngrad", counted(0.1, 8.0))
    put(tmp_path, "resnet50", "fixed 0.1", counted(1 / 60, 12.8))
    for turn in (0, 2):
        put(tmp_path, "network", "dense", sending(1.2), turn)
    put(tmp_path, "network", "fixed 0.1", sending(0.4), 2)
    judged = {claim for claim, _ in states(tmp_path)}
    assert judged == {
        "alexnet_terngrad_ratio", "resnet50_fixed_ratio", "dgc_ratio", "baseline_io", "iwp_io", "densifies",
    }  # fmt: skip
    assert verb.report("iwp")(["--runs", str(tmp_path), "--trainings", str(tmp_path / "none")]) == 0
    lines = (tmp_path / "table.md").read_text().splitlines()
    [other] = [line for line in lines if line.startswith("| DGC's compression ratio") and "resnet50" in line]
    [missing] = [line for line in lines if line.startswith("| ResNet-50, layer-wise threshold: compression ratio")]
    assert "not run here" in other and "not run here" in missing and "iwp run --parts alexnet resnet50" in missing
    assert "(2)" in next(line for line in lines if "network I/O is close to full load" in line), "turns are too few"


@pytest.mark.parametrize("top1, state", [(0.7630, "reproduced"), (0.7560, "not decidable")])
def test_trainings_on_imagenet_are_judged_beside_their_baseline(
    top1: float, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A difference needs its baseline; what the paper leaves unstated decides nothing where it is missed."""
    runs = {
        "mine/base": ("resnet50", {"name": "none"}, 0.7600),
        "mine/layers": ("resnet50", {"name": "iwp", "mode": "layerwise"}, top1),
        "other": ("alexnet", {"name": "terngrad"}, 0.57),
    }
    for place, (model, compressor, accuracy) in runs.items():
        made = run_record("2+2")
        made["config"] |= {"model": {"name": model}, "data": {"name": "imagefolder"}, "compressor": compressor}
        made["final"]["top1"] = accuracy
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "record.json").write_text(json.dumps(made))
    found = {each.claim.id: each for each in imagenet.findings(imagenet.load(tmp_path))}
    assert {name: each.verdict.state for name, each in found.items()} == {
        "resnet50_baseline": "reproduced", "resnet50_layerwise_accuracy": state,
    }  # fmt: skip
    judged = found["resnet50_layerwise_accuracy"]
    assert judged.verdict.measured == pytest.approx(100 * top1 - 76) and len(judged.records) == 2
    assert any(rule.startswith("seeds") for rule in judged.rules), "one seed each"
    assert verb.report("iwp")(["--imagenet", str(tmp_path / "nothing"), "--print"]) == 2
    assert "has no finished run on an image folder" in capsys.readouterr().err


@pytest.mark.parametrize("age, state", [(150.0, "reproduced"), (0.3, "not decidable")])
def test_an_interval_is_that_of_long_runs(age: float, state: str, tmp_path: Path) -> None:
    put(tmp_path, "cifar", "fixed 0.05", counted(0.01, 10.0, age, LONG))
    put(tmp_path, "cifar", "fixed 0.1", counted(0.01, 10.0, age, 30))
    found = {about: each for (claim, about), each in states(tmp_path).items() if claim == "interval"}
    assert found == {"fixed 0.05": state}, "a run of 30 steps says nothing of 100 to 300"


@pytest.mark.parametrize("dense, state", [(120.0, "reproduced"), (50.0, "not reproduced")])
@pytest.mark.parametrize(("model", "link"), [("resnet50", "1gbit"), ("resnet50", "100mbit"), ("resnet20", "1gbit")])
def test_a_full_link_is_told_by_the_interfaces_counter(
    dense: float, state: str, model: str, link: str, tmp_path: Path
) -> None:
    """Of the paper's model and rate: a slower link is full of itself."""
    for turn in range(5):
        for label, less in (("dense", 1.0), ("fixed 0.05", 1.5), ("fixed 0.1", 3.0)):
            made = sending(dense / less)
            made["config"]["model"]["name"] = model
            put(tmp_path, "network", label, made, turn, link)
    found, same = states(tmp_path), (model, link) == ("resnet50", "1gbit")
    assert found["baseline_io", ""] == (state if same else "not run here")
    assert found["iwp_io", "fixed 0.1"] == ("reproduced" if same else "not run here")
    assert found["iwp_io", "fixed 0.05"] == ("direction reproduced" if same else "not run here")
    assert verb.report("iwp")(["--runs", str(tmp_path), "--trainings", str(tmp_path / "none")]) == 0
    share = f"{dense / 1.25 * (1 if link == '1gbit' else 10):.1f}"
    assert (
        f"| {1000 * dense:.0f} [{1000 * dense:.0f} - {1000 * dense:.0f}] | {share} |"
        in (tmp_path / "network" / "table.md").read_text()
    )


def test_what_nodes_choose_at_random_adds_up() -> None:
    assert [round(united(0.01, nodes), 3) for nodes in (1, 2, 8, 96)] == [0.01, 0.02, 0.077, 0.619]


def test_an_empty_folder_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.report("iwp")(["--runs", str(tmp_path)]) == 2
    assert "measure first" in capsys.readouterr().err
    assert set(states(tmp_path)) == {("densifies", "")}, "what is computed needs no run"
    assert report.committed() == [[]]
    assert Study("iwp").published.source["authors"] == "Cheng and Xu"
