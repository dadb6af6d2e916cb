"""A full link: it is named, with what it would help to send, and what that does to accuracy; what a message costs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.test_diagnose import diagnosed, healthy, main, slow
from tests.distributed.launch import ROOT
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.diagnose import evidence
from wirebench.diagnose.fewer_bytes import Other, Saving
from wirebench.diagnose.full_link import advise_line, carried, front
from wirebench.diagnose.link import UNKNOWN, TimedMessage, fitted
from wirebench.planner.accuracy import LOSS, Ended
from wirebench.simulation.trace import Trace, TraceLayer

BUCKETS = (1_500_000, 1_000_000, 500_000)
NUMEL = sum(BUCKETS)
FORWARD, BACKWARD = 0.03, 0.06
RATE = 25e6
"""Of the link, 200 Mbit/s."""
TOY = "configs/synthetic/toy.toml"


def recorded(
    folder: Path, *settings: str, rate: float = RATE, share: float = 1.0, layers: bool = True
) -> dict[str, Any]:
    """The folder of a run of two ranks whose first bucket is there at once; share: of the dense bytes that it sends."""
    config = resolve(loader.load(ROOT / TOY, ["engine.name=torch", "engine.workers=2", *settings]))
    sizes = [4 * share * numel for numel in BUCKETS]
    whole = sum(sizes) / rate
    exposed = max(whole - BACKWARD, sizes[-1] / rate)
    record, step = healthy(), 0.004 + FORWARD + BACKWARD + exposed
    phases = {"data": 0.0, "forward": FORWARD, "backward": BACKWARD, "compress": 0.0, "exchange_exposed": exposed}
    for rank in record["ranks"]:
        rank |= {"phases": phases | {"update": 0.004}, "step_seconds": step, "link_mbit": {"eth0": 8e-6 * rate}}
    record |= {"phases": phases | {"update": 0.004}, "step_seconds": {"median": step, "p10": step, "p90": step}}
    record["bytes_per_step"] |= {"payload": sum(sizes), "dense": 4 * NUMEL, "wire": sum(sizes), "wire_mean": sum(sizes)}
    record["config"] = loader.to_dict(config)
    record["samples"] = {"unit": "images"}
    record["requests"] = [{"kind": "Sum", "plan": "native", "rounds": 1, "bytes": size} for size in sizes]
    (folder / "record.json").write_text(json.dumps(record))
    draw(folder, sizes, rate)
    if layers:
        made = tuple(
            TraceLayer(f"layer {n}", numel, FORWARD / 3, BACKWARD / 3, (numel // 500, 500))
            for n, numel in enumerate(reversed(BUCKETS))
        )
        Trace("toy", "toy", "", 16, False, "made up", "", made).save(folder / "layers.json")
    return record


def draw(folder: Path, sizes: Sequence[float], rate: float) -> None:
    """trace.json of three steps: each message takes its bytes over the rate."""
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": name}}
        for tid, name in ((1, "exchange"), (3, "requests"))
    ]
    for _ in range(3):
        for number, (numel, size) in enumerate(zip(BUCKETS, sizes, strict=True)):
            span = {"ph": "X", "pid": 0, "ts": 0.0, "dur": 1e6 * size / rate}
            events.append({**span, "name": f"bucket {number}", "tid": 1, "args": {"elements": numel}})
            events.append({**span, "name": "Sum", "tid": 3, "args": {"wire_bytes": size}})
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))


def changes_of(found: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["what"].removeprefix("compressor.name="): each for each in found["changes"]}


def test_a_full_link_is_said_with_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path)
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    # 12 MB at 25 MB/s are 480 ms, of which the backward pass hides 60; the step has 94 ms beside.
    assert "1. Your link is full: the exchange waits 420 ms of a step (82%), at 0.2 of 0.2 Gbit/s." in out
    assert "12 MB in 3 messages of a step, which take 480 ms" in out
    line = f"wirebench advise --trace {tmp_path}/layers.json --gbit 0.2 --workers 2"
    assert out.rstrip().endswith(line)


def test_half_of_the_bytes_save_what_they_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path)
    [found] = diagnosed(tmp_path, capsys)["findings"]
    changes = changes_of(found)
    half = changes["fp16"]
    assert half["wire_bytes"] == pytest.approx(2 * NUMEL)
    # 240 ms, less what casting takes.
    assert 0.15 < half["gain"] < 0.24
    assert half["settings"] == ["compressor.name=fp16"] and half["accuracy"].startswith("free (")
    gains = [each["gain"] for each in found["changes"]]
    assert gains == sorted(gains) and len(gains) <= 4
    assert found["gain"] == max(each["gain"] for each in found["changes"] if not each["costs"])


def test_the_ready_line_of_a_ranking_runs(tmp_path: Path) -> None:
    """What it names is a trace that the planner takes."""
    from tests.cli.verbs import verb

    recorded(tmp_path)
    words = advise_line(evidence.read(tmp_path), RATE).split()
    assert words[:2] == ["wirebench", "advise"]
    assert verb("advise")([*words[2:], "--compressors", "bf16"]) == 0


def test_a_rank_that_the_others_wait_for_is_not_the_links_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = recorded(tmp_path)
    slow(record)
    (tmp_path / "record.json").write_text(json.dumps(record))
    # Of 480 ms rank 0 waited 114 for the other one; but no message takes less than it took at its fastest.
    assert carried(evidence.read(tmp_path)).bytes_per_second == pytest.approx(12e6 / 0.477)


def test_findings_are_ranked_by_the_seconds_they_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for data, first in ((0.05, "full link"), (2.0, "data")):
        record = recorded(tmp_path)
        record["ranks"][1]["phases"] = {**record["ranks"][1]["phases"], "data": data}
        (tmp_path / "record.json").write_text(json.dumps(record))
        found = diagnosed(tmp_path, capsys)["findings"]
        assert {each["name"] for each in found} == {"full link", "data"} and found[0]["name"] == first
        assert found[0]["gain"] >= found[1]["gain"]


def test_nothing_is_said_of_a_link_that_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At 10 Gbit/s the last bucket takes 1.6 ms of a step of 96."""
    recorded(tmp_path, rate=1.25e9)
    assert diagnosed(tmp_path, capsys)["findings"] == []


def test_what_the_backward_pass_hides_saves_nothing(tmp_path: Path) -> None:
    """Messages of 65 ms: 60 are hidden, and no compressor saves more than the 10.8 of the last bucket."""
    recorded(tmp_path, rate=12e6 / 0.065)
    known = evidence.read(tmp_path)
    saved = list(Other(known, carried(known)).savings({"bf16": None, "topk": 0.01}))
    assert len(saved) == 2 and all(0 < each.seconds <= 0.0109 for each in saved)


def test_ranks_that_share_cores_compute_longer_beside_a_compressor(tmp_path: Path) -> None:
    """The pass as it was includes the run's own exchange; one that works longer beside it saves less."""

    def saved(cores: int) -> float:
        record = recorded(tmp_path)
        record["ranks"] = [each | {"cores": cores} for each in record["ranks"]]
        record["load"] = [{"hostname": "vm", "ranks": [0, 1], "cores": cores, "others_cores": 0.0}]
        (tmp_path / "record.json").write_text(json.dumps(record))
        known = evidence.read(tmp_path)
        other = Other(known, carried(known))
        assert other._own().passes.backward == pytest.approx(BACKWARD, rel=1e-3)
        [found] = other.savings({"topk": 0.01})
        return found.seconds

    assert saved(2) < saved(4)


def test_a_run_that_compresses_may_compress_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, "compressor.name=fp16", share=0.5)
    [found] = diagnosed(tmp_path, capsys)["findings"]
    changes = changes_of(found)
    assert found["name"] == "full link" and any(each["wire_bytes"] < NUMEL for each in changes.values())
    assert not {"fp16", "bf16", "none"} & changes.keys()


def test_what_train_would_refuse_is_not_proposed(tmp_path: Path) -> None:
    """dgc applies the momentum itself, in place of sgd's."""
    names = {"bf16": None, "dgc": 0.01}
    for settings, expected in (((), {"bf16", "dgc"}), (("optimizer.name=adamw",), {"bf16"})):
        recorded(tmp_path, *settings)
        known = evidence.read(tmp_path)
        assert {each.compressor for each in Other(known, carried(known)).savings(names)} == expected


@pytest.mark.parametrize("scheduler", ["builtin", "easgd", "outer"])
def test_schedulers_that_send_no_gradients_of_ours_have_no_such_finding(
    scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, f"scheduler.name={scheduler}")
    assert "full link" not in [each["name"] for each in diagnosed(tmp_path, capsys)["findings"]]


def test_without_layers_the_buckets_are_the_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, layers=False)
    [found] = diagnosed(tmp_path, capsys)["findings"]
    assert 0.15 < changes_of(found)["fp16"]["gain"] < 0.24
    assert "powersgd" not in changes_of(found), "it works on shapes"
    assert "--model" in found["remarks"][-1] and "--probe" in found["remarks"][-1]


def test_a_poor_link_is_not_called_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path)
    assert [each["name"] for each in diagnosed(tmp_path, capsys, "--link", "1gbit")["findings"]] == ["link"]


def test_without_a_nominal_rate_the_fitted_one_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = recorded(tmp_path)
    for rank in record["ranks"]:
        rank["link_mbit"] = {}
    (tmp_path / "record.json").write_text(json.dumps(record))
    [found] = diagnosed(tmp_path, capsys)["findings"]
    assert found["sentence"].endswith("at 0.2 Gbit/s.")


def test_in_slow_motion_the_real_network_is_ranked_for(tmp_path: Path) -> None:
    record = recorded(tmp_path)
    record["config"]["network"]["dilation"] = 10.0
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert "--speed 10 --gbit 2 --workers 2" in advise_line(evidence.read(tmp_path), RATE)


def test_virtual_workers_have_no_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = recorded(tmp_path)
    record |= {"engine": "local", "ranks": None, "backend": None}
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("No network: the exchange is computed in this process") == 1
    assert "Gbit/s" not in out and "Of the exchange" not in out and "full" not in out
    told = diagnosed(tmp_path, capsys)
    assert told["findings"] == [] and told["link"]["bytes_per_second"] is None


def test_shares_are_of_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Means of phases lie above the median step where few steps are slow."""
    record = recorded(tmp_path)
    record["step_seconds"]["median"] /= 2
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert main([str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ") and line.endswith("%")]
    shares = [float(line.split()[-1].rstrip("%")) for line in lines]
    assert len(shares) == 7 and sum(shares) == pytest.approx(100, abs=0.4)


def saving(name: str, seconds: float) -> Saving:
    return Saving(name, (f"compressor.name={name}",), seconds, 1e6)


def test_a_change_that_another_one_beats_is_not_shown() -> None:
    ended = {
        "mild": Ended(0.1, None, (-0.3, 0.4)),
        "worse": Ended(-0.4, None, (-0.7, 0.1)),
        "lossy": Ended(-2.0, 0.01, (-3.0, -1.0)),
        "alike": Ended(-2.5, None, (-3.5, -1.0)),
    }
    found = front([saving("mild", 2), saving("worse", 1.9), saving("lossy", 3), saving("alike", 3.1)], ended, 0.2)
    assert [(each.what, each.costs) for each in found] == [
        ("compressor.name=mild", False), ("compressor.name=lossy", True),
    ]  # fmt: skip
    assert [each.accuracy for each in found] == ["free (-0.3..+0.4 points)", "-3.0..-1.0 points"]


def test_of_many_changes_the_mildest_and_the_fastest_are_shown() -> None:
    ended = {f"c{n}": Ended(-n / 4, None, (-n / 4, -n / 4)) for n in range(6)}
    found = front([saving(name, 1 + n) for n, name in enumerate(ended)], ended, 0.5)
    assert [each.gain for each in found] == [1, 2, 3, 6]


def test_a_plain_compressor_is_shown_beside_one_that_loses_less() -> None:
    """Rounding is the least change of a run; one that loses more than is tolerated is no such."""
    ended = {name: Ended(points, None, (points, 0.1)) for name, points in (("cast", -0.1), ("sparse", 0.0))}
    pair = [saving("sparse", 3), saving("cast", 1)._replace(plain=True)]
    assert [each.gain for each in front(pair, ended, 0.1)] == [1, 3]
    worse = ended | {"cast": Ended(-0.6, None, (-0.8, 0.1))}
    assert [each.gain for each in front(pair, worse, 0.1)] == [3]


def test_losses_are_told_as_such() -> None:
    ended = {"bf16": Ended(0.0, None, (-0.3, 0.6), LOSS), "topk": Ended(-20.0, 0.01, (-22.0, -19.0), LOSS)}
    mild, fast = front([saving("bf16", 1), saving("topk", 2)], ended, 0.5)
    assert mild.accuracy == "free (0.994..1.003 times the loss)" and not mild.costs
    assert fast.accuracy == "1.190..1.220 times the loss" and fast.costs


ALONE, START = 125e6, 0.0003


def timed(*sizes: float, start: float = START, rounds: int = 1) -> list[TimedMessage]:
    return [TimedMessage("Sum", start * rounds + size / ALONE, size, rounds) for size in sizes]


@pytest.mark.parametrize("rounds", [1, 6])
def test_start_up_and_rate_are_found_again(rounds: int) -> None:
    link = fitted(timed(4, 1e6, 1e7, rounds=rounds))
    assert link.start_seconds == pytest.approx(START) and link.bytes_per_second == pytest.approx(ALONE)


def test_messages_of_one_size_give_a_least_rate_and_no_start_up() -> None:
    alike = [TimedMessage("Sum", 0.01, 1e6, 1), TimedMessage("Sum", 0.012, 1e6, 1)]
    assert fitted(alike).start_seconds is None and fitted(alike).bytes_per_second == pytest.approx(1e8)
    assert fitted([]) == UNKNOWN


def test_a_start_up_below_zero_leaves_one_constant() -> None:
    """As where short messages arrive before their time: the rate alone, between those of all messages."""
    early = [*timed(1e6, 1e7, start=0), TimedMessage("Sum", 1e4 / ALONE / 5, 1e4, 1)]
    link = fitted(early)
    assert link.start_seconds is None
    assert link.bytes_per_second is not None and ALONE < link.bytes_per_second < 5 * ALONE


def test_a_rate_below_zero_leaves_the_start_up() -> None:
    slower_when_short = [TimedMessage("Sum", 0.004, 1e4, 1), TimedMessage("Sum", 0.002, 1e6, 1)]
    link = fitted(slower_when_short)
    assert link.bytes_per_second is None
    assert link.start_seconds is not None and 0.002 < link.start_seconds < 0.004


def test_tiny_messages_tell_no_rate() -> None:
    link = fitted(timed(100, 4000))
    assert link.start_seconds == pytest.approx(START, rel=0.1) and link.bytes_per_second is None
