"""Step and phase times on the host and, through stand-in events, on a device; the trace of them."""

import json
import threading
from collections.abc import Iterator

import pytest
import torch

import wirebench.telemetry.clock
import wirebench.telemetry.timers
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.step_stats import PHASES, StepTimes, summary
from wirebench.telemetry.timeline import Timeline


class Device:
    """A stand-in GPU: events take its time when it gets to them, and it stands still until `advance`."""

    def __init__(self):
        self.milliseconds = 0.0
        self.waiting: list[FakeEvent] = []

    def advance(self, milliseconds):
        self.milliseconds += milliseconds


class FakeEvent:
    device = Device()

    def __init__(self, enable_timing):
        assert enable_timing
        self.at = None

    def record(self, stream):
        assert stream == "stream"
        self.at, self.hidden = self.device.milliseconds, True
        self.device.waiting.append(self)

    def query(self):
        return not self.hidden

    def elapsed_time(self, end):
        assert self.query() and end.query(), "asked before the device got there"
        return end.at - self.at


@pytest.fixture
def gpu(monkeypatch) -> Iterator[Device]:
    device = FakeEvent.device = Device()
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: "stream")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: reach(device))
    yield device


def reach(device, count=None):
    for event in device.waiting[:count]:
        event.hidden = False
    del device.waiting[:count]


class HostTime:
    """Stands in for the time module: it passes when told to."""

    def __init__(self):
        self.now = 1000.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def host(monkeypatch) -> HostTime:
    fake = HostTime()
    monkeypatch.setattr(wirebench.telemetry.clock, "time", fake)
    monkeypatch.setattr(wirebench.telemetry.timers, "time", fake)
    return fake


def host_clock():
    return Clock(torch.device("cpu"), Timeline())


def test_host_step_has_its_phases_and_its_seconds(host):
    clock = host_clock()
    host.sleep(100)
    clock.resume()
    with clock.phase("forward"):
        host.sleep(2)
    with clock.phase("forward"):
        host.sleep(1)
    with clock.phase("compress", "compress"):
        host.sleep(0.5)
    host.sleep(4)
    clock.end_step(7, images=32, counted=True)
    phases = dict.fromkeys(PHASES, 0.0) | {"forward": 3.0, "compress": 0.5}
    assert clock.completed() == [StepTimes(7, 7.5, phases, 32, True)]
    assert clock.completed() == []


def test_a_step_begins_where_the_one_before_ended(host):
    clock = host_clock()
    clock.resume()
    for step in range(3):
        host.sleep(step + 1)
        clock.end_step(step, 1, True)
    assert [times.seconds for times in clock.completed()] == [1, 2, 3]


def test_a_pause_belongs_to_no_step(host):
    clock = host_clock()
    clock.resume()
    host.sleep(1)
    clock.end_step(0, 1, True)
    clock.pause()
    with clock.phase("forward"), clock.phase("update", within="forward"):
        host.sleep(50)
    clock.resume()
    host.sleep(2)
    clock.end_step(1, 1, True)
    first, second = clock.completed()
    assert (first.seconds, second.seconds) == (1, 2)
    assert sum(second.phases.values()) == 0


def test_no_phase_is_lost_between_threads(tmp_path):
    timeline = Timeline()
    clock, timeline.active = Clock(torch.device("cpu"), timeline), True
    clock.resume()

    def work():
        for _ in range(500):
            with clock.phase("compress", "compress"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for step in range(20):
        clock.end_step(step, 1, True)
    for thread in threads:
        thread.join()
    clock.end_step(20, 1, True)
    clock.completed()
    assert len(saved_spans(timeline, tmp_path)) == 2000


@pytest.mark.parametrize("call", [lambda c: c.end_step(0, 1, True), lambda c: c.phase("wait").__enter__()])
def test_misuse_is_caught(call):
    with pytest.raises(AssertionError):
        call(host_clock())


def test_a_failing_phase_is_not_timed():
    clock = host_clock()
    clock.resume()
    with pytest.raises(RuntimeError), clock.phase("backward"):
        raise RuntimeError
    clock.end_step(0, 1, True)
    assert clock.completed()[0].phases["backward"] == 0


def gpu_step(clock, device, step):
    with clock.phase("forward"):
        device.advance(10)
    with clock.phase("backward"):
        device.advance(20)
    device.advance(5)
    clock.end_step(step, 4, True)


def test_a_phase_within_another_is_no_part_of_it(gpu, tmp_path):
    """Both are the device's times, whatever the host did meanwhile."""
    timeline = Timeline()
    clock, timeline.active = Clock(torch.device("cuda"), timeline), True
    clock.resume()
    with clock.phase("forward"):
        gpu.advance(10)
        with clock.phase("exchange_exposed", "held up", label="wait for bucket 3", within="forward"):
            gpu.advance(4)
        with clock.phase("update", within="forward"):
            gpu.advance(1)
        gpu.advance(5)
    clock.end_step(0, 4, True)
    [times] = clock.drain()
    expected = {"forward": 0.015, "exchange_exposed": 0.004, "update": 0.001}
    assert times.phases == pytest.approx(dict.fromkeys(PHASES, 0.0) | expected)
    assert times.seconds == pytest.approx(sum(expected.values()))
    lengths = {span["name"]: span["dur"] for span in saved_spans(timeline, tmp_path)}
    assert lengths == pytest.approx({"forward": 20_000, "wait for bucket 3": 4_000, "update": 1_000}, abs=1)


def test_device_steps_are_known_when_the_device_has_passed_them(gpu):
    clock = Clock(torch.device("cuda"), Timeline())
    clock.resume()
    gpu_step(clock, gpu, 0)
    gpu_step(clock, gpu, 1)
    assert clock.completed() == []
    reach(gpu, 5)
    assert clock.completed() == [], "its last event is still to come"
    reach(gpu, 1)
    (first,) = clock.completed()
    assert first.seconds == pytest.approx(0.035)
    assert first.phases["forward"] == pytest.approx(0.010)
    assert first.phases["backward"] == pytest.approx(0.020)
    (second,) = clock.drain()
    assert second.step == 1 and second.seconds == pytest.approx(0.035)


def test_device_step_waits_for_events_of_other_streams(gpu):
    clock = Clock(torch.device("cuda"), Timeline())
    clock.resume()
    with clock.phase("compress", track="communication"):
        gpu.advance(3)
    late = gpu.waiting.pop()
    clock.end_step(0, 1, True)
    reach(gpu)
    assert clock.completed() == []
    late.hidden = False
    assert clock.completed()[0].phases["compress"] == pytest.approx(0.003)


def test_device_time_of_a_pause_does_not_count(gpu):
    clock = Clock(torch.device("cuda"), Timeline())
    clock.resume()
    gpu_step(clock, gpu, 0)
    clock.pause()
    gpu.advance(1000)
    clock.resume()
    gpu_step(clock, gpu, 1)
    assert [times.seconds for times in clock.drain()] == pytest.approx([0.035, 0.035])


def test_device_phases_are_drawn_at_device_time(gpu, tmp_path):
    timeline = Timeline(rank=2)
    clock = Clock(torch.device("cuda"), timeline)
    clock.resume()
    gpu_step(clock, gpu, 0)
    timeline.active = True
    gpu_step(clock, gpu, 1)
    gpu_step(clock, gpu, 2)
    timeline.active = False
    clock.drain()
    spans = saved_spans(timeline, tmp_path)
    assert [(s["name"], s["ts"], s["dur"]) for s in spans] == [
        ("forward", 0, pytest.approx(10_000, abs=1)),
        ("backward", pytest.approx(10_000, abs=1), pytest.approx(20_000, abs=1)),
        ("forward", pytest.approx(35_000, abs=1), pytest.approx(10_000, abs=1)),
        ("backward", pytest.approx(45_000, abs=1), pytest.approx(20_000, abs=1)),
    ]
    assert spans[0]["args"] == {"step": 1} and spans[0]["pid"] == 2


def saved_spans(timeline, folder):
    timeline.save(folder / "trace.json")
    return [e for e in json.loads((folder / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]


def test_timeline_draws_only_while_active(tmp_path):
    timeline = Timeline()
    timeline.span("compute", "too early", 0.0, 1.0)
    timeline.active = True
    timeline.span("communication", "bucket 1", 5.5, 6.0, bytes=4)
    timeline.span("compute", "forward", 5.0, 5.25)
    timeline.active = False
    timeline.span("compute", "too late", 7.0, 8.0)
    timeline.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    spans = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "X"}
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert set(spans) == {"forward", "bucket 1"}
    assert (spans["forward"]["ts"], spans["forward"]["dur"]) == (0, 250_000)
    assert (spans["bucket 1"]["ts"], spans["bucket 1"]["dur"]) == (500_000, 500_000)
    assert spans["bucket 1"]["args"] == {"bytes": 4}
    assert names[spans["forward"]["tid"]] == "compute" and names[spans["bucket 1"]["tid"]] == "communication"
    assert trace["displayTimeUnit"] == "ms"


def test_summary_leaves_warm_up_out_and_counts_the_world():
    def step(number, seconds, counted=True):
        return StepTimes(number, seconds, {name: seconds / 10 for name in PHASES}, 8, counted)

    result = summary([step(0, 100.0, counted=False), step(1, 1.0), step(2, 2.0), step(3, 4.0)], world_size=4)
    assert result["images_per_second"] == {
        "median": 16.0,
        "mean": pytest.approx(3 * 32 / 7),
        "p10": pytest.approx(9.6),
        "p90": pytest.approx(28.8),
        "steps": 3,
    }
    assert result["step_seconds"] == {"median": 2.0, "p10": pytest.approx(1.2), "p90": pytest.approx(3.6)}
    assert result["phases"] == {name: pytest.approx(0.7 / 3) for name in PHASES}


def test_summary_of_no_counted_step_is_null():
    result = summary([StepTimes(0, 1.0, dict.fromkeys(PHASES, 0.1), 8, False)], world_size=2)
    assert result["images_per_second"] == {"median": None, "mean": None, "p10": None, "p90": None, "steps": 0}
    assert set(result["step_seconds"].values()) == set(result["phases"].values()) == {None}
