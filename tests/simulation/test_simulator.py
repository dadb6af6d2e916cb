"""Simulated steps: the MG-WFBP paper's setting, what must always hold, the picture of a step, disturbances."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.cli.verbs import verb
from tests.costmodel.closed_forms import finish_seconds
from tests.costmodel.test_request_sizes import make_of
from wirebench import collectives, compressors, schedulers
from wirebench.costmodel.request_cost import Pricer
from wirebench.costmodel.request_sizes import Sizes
from wirebench.errors import UserError
from wirebench.gradient.requests import Sum
from wirebench.simulation import trace
from wirebench.simulation.disturbance import Disturbance, quantiles
from wirebench.simulation.simulator import Factors, Simulator, draw, free, layers_of, passes_of, simulate
from wirebench.simulation.trace import Trace, TraceLayer
from wirebench.telemetry.timeline import ALL_GATHER, Timeline
from wirebench.topology import presets
from wirebench.topology.processor import IDLE
from wirebench.topology.tree import Topology

PAPER = presets.find("mgwfbp")
GOOGLENET = trace.load(trace.SHIPPED / "googlenet_k80.json")
SMALL = Trace(
    "small", "made up", "none", 16, False, "by hand", "none",
    (
        TraceLayer("stem", 0, 0.001, 0.002),
        TraceLayer("a", 8192, 0.002, 0.003, (64, 128)),
        TraceLayer("pool", 0, 0.004, 0.005),
        TraceLayer("b", 100, 0.006, 0.007),
        TraceLayer("c", 50_000, 0.008, 0.009, (500, 100)),
        TraceLayer("loss", 0, 0.010, 0.011),
    ),
)  # fmt: skip


def simulator(
    model: Trace = SMALL, ranks: int = 4, compressor: str = "none", collective: str = "ring", **options
) -> Simulator:
    topology = presets.cluster(options.pop("network", PAPER), ranks, options.pop("each", 1))
    topology = replace(topology, processor=options.pop("processor", IDLE))
    compressing, decoding = options.pop("compressing", free), options.pop("decoding", None)
    pricer = Pricer(collectives.build(collective), topology, **options)
    sizes = Sizes(make_of(compressor), ranks, compressors.dense_below_of(compressor))
    return Simulator(model, sizes, compressing, pricer, decoding)


def efficiency(made: Simulator, name: str) -> float:
    return made.step(schedulers.build(name)).efficiency


def test_a_stretched_exchange_moves_what_it_does_not_hide():
    made, built = simulator(compressor="topk", compressing=lambda numel: 1e-3), schedulers.build("wfbp")
    found = made.step(built)
    assert made.stretched(found, built, Factors(1.0, 1.0)) == found.step
    slow, free_of_charge = (made.stretched(found, built, Factors(each, each)) for each in (1e3, 0.0))
    assert free_of_charge.seconds == pytest.approx(found.alone) and free_of_charge.exposed == 0
    wire = made.stretched(found, built, Factors(1e3, 1.0)).seconds
    assert found.step.seconds < wire < slow.seconds, "both its messages and its compressor"
    outer = schedulers.build("outer")
    assert made.stretched(made.step(outer), outer, Factors(1.0, 1.0)) == made.step(outer).step


def test_one_call_says_what_the_simulator_does():
    parts = schedulers.build("optimal"), make_of("topk"), "ring"
    found = simulate(SMALL, *parts, PAPER, 4, dense_below=compressors.dense_below_of("topk"))
    assert found == simulator(SMALL, 4, "topk").step(schedulers.build("optimal"))
    topology = presets.cluster(PAPER, 4)
    assert simulate(SMALL, *parts, topology, 4).step.seconds == simulate(SMALL, *parts, topology).step.seconds
    assert simulate(SMALL, *parts, topology, compressing=lambda numel: 1.0).step.seconds > 1


@pytest.mark.parametrize(
    ("network", "workers", "words"),
    [
        (PAPER, None, "workers: None; a network needs a number of workers"),
        (PAPER, 0, "workers: 0"),
        (presets.cluster(PAPER, 4), 5, "workers: 5, but the topology has 4"),
        (Topology.parse("2+2"), None, "does not say how fast its links are"),
    ],
)
def test_one_call_refuses_what_makes_no_sense(network, workers, words):
    with pytest.raises(UserError, match=words):
        simulate(SMALL, schedulers.build("wfbp"), make_of("none"), "ring", network, workers)


@pytest.fixture(scope="module")
def googlenet() -> dict[int, Simulator]:
    return {nodes: simulator(GOOGLENET, nodes, formulas=True) for nodes in (1, 4, 8, 16, 32, 64)}


def test_googlenet_on_64_nodes(googlenet: dict[int, Simulator]):
    mine = efficiency(googlenet[64], "mg_wfbp")
    assert mine / efficiency(googlenet[64], "wfbp") == pytest.approx(1.73, rel=0.05)
    assert mine / efficiency(googlenet[64], "sync_easgd") == pytest.approx(1.35, rel=0.05)


def test_one_message_per_layer_is_overtaken_by_one_in_all(googlenet: dict[int, Simulator]):
    ahead = {n: efficiency(googlenet[n], "wfbp") > efficiency(googlenet[n], "sync_easgd") for n in (4, 8, 16, 32, 64)}
    assert ahead[4] and ahead[8] and ahead[16] and not ahead[64]


def test_the_optimum_is_never_worse(googlenet: dict[int, Simulator]):
    for nodes, made in googlenet.items():
        best = efficiency(made, "optimal")
        for name in ("naive", "wfbp", "sync_easgd", "fused", "mg_wfbp", "mg_wfbp_later", "asc_wfbp"):
            assert best >= efficiency(made, name) - 1e-9, (nodes, name)


def test_one_node_waits_for_nobody(googlenet: dict[int, Simulator]):
    for name in schedulers.available():
        assert efficiency(googlenet[1], name) == pytest.approx(1, abs=1e-12), name


def of_the_paper(numel: int) -> float:
    """A ring of 64 nodes: MG-WFBP, Table II."""
    slope = 63 / 64 * (2 / PAPER.bytes_per_second + PAPER.reduce_seconds_per_byte)
    return 2 * 63 * PAPER.latency_seconds + slope * 4 * numel


def test_the_step_is_the_papers_recurrence(googlenet: dict[int, Simulator]):
    made = googlenet[64]
    costs = made.costs()
    for name in ("wfbp", "mg_wfbp", "optimal"):
        found = made.step(schedulers.build(name))
        end = finish_seconds(costs, found.groups, of_the_paper)
        assert found.step.seconds == pytest.approx(sum(made.passes.forward) + end, rel=1e-6), name


@pytest.mark.sampled(8)
@pytest.mark.parametrize("compressor", compressors.available())
def test_what_must_hold_for_every_composition(compressor: str):
    paper = getattr(compressors.PLUGINS.load(compressor), "collective", "") or "ring"
    for ranks, each in ((4, 1), (4, 2), (64, 8)):
        made = simulator(ranks=ranks, each=each, compressor=compressor, collective=paper)
        for name in schedulers.available():
            found = made.step(schedulers.build(name))
            assert 0 < found.efficiency <= 1
            assert found.step.seconds == pytest.approx(made.passes.seconds + found.step.exposed)
            assert sum(found.elements) == 58_292
            assert [i for group in found.groups for i in group] == [0, 1, 2]
            assert found.step.exposed <= found.communicate + found.compress + 1e-12
            assert found.num_bytes > 0 or compressor in ("threshold", "iwp")


def test_the_optimum_of_costs_that_are_no_line():
    """A job knows costs at some sizes only, and lines between them: the optimum may be a little off the best."""
    for compressor in ("topk", "powersgd", "gtopk", "dgc"):
        made = simulator(GOOGLENET.faster(4), 8, compressor, "tree", compressing=lambda numel: 1e-3 + 1e-9 * numel)
        best = made.step(schedulers.build("optimal")).step.seconds
        for name in ("wfbp", "sync_easgd", "fused", "mg_wfbp"):
            assert best <= 1.02 * made.step(schedulers.build(name)).step.seconds, (compressor, name)


def test_compression_is_part_of_a_message():
    plain = simulator()
    slow = simulator(compressing=lambda numel: 0.001 * (1 + numel // 50_000))
    for name in ("wfbp", "sync_easgd", "dear"):
        before, after = plain.step(schedulers.build(name)), slow.step(schedulers.build(name))
        assert after.compress == pytest.approx({"wfbp": 0.004, "sync_easgd": 0.002, "dear": 0.002}[name])
        assert after.communicate == pytest.approx(before.communicate)
    exposed = [made.step(schedulers.build("sync_easgd")).step.exposed for made in (plain, slow)]
    assert exposed[1] - exposed[0] == pytest.approx(0.002)


def test_layers_without_parameters_belong_to_the_next_gradient():
    passes = passes_of(SMALL)
    assert passes.ready == pytest.approx((0.011 + 0.009, 0.027, 0.027 + 0.005 + 0.003))
    assert passes.backward == pytest.approx(SMALL.backward_seconds)
    assert sum(passes.forward) == pytest.approx(SMALL.forward_seconds)
    assert passes.forward == pytest.approx((0.018, 0.006 + 0.004, 0.002 + 0.001))


def test_layers_are_those_of_a_job_in_backward_order():
    assert [(each.name, each.numel, each.ndim, each.rows) for each in layers_of(SMALL)] == [
        ("c", 50_000, 2, 500), ("b", 100, 1, 100), ("a", 8192, 2, 64),
    ]  # fmt: skip


def test_a_split_schedule_hands_sums_out_under_the_next_forward_pass():
    slow = PAPER._replace(bytes_per_second=1e7)
    cap = 8192 * 4 / 2**20
    split = simulator(network=slow).step(schedulers.build("dear", bucket_cap_mb=cap))
    fused = simulator(network=slow).step(schedulers.build("fused", bucket_cap_mb=cap, first_bucket_mb=cap))
    assert split.groups == fused.groups == (range(0, 1), range(1, 3))
    assert [span.half for span in split.step.spans] == ["reduce", "reduce", "copy", "copy"]
    assert split.step.seconds < fused.step.seconds


def test_buckets_are_priced_once_whichever_schedule_asks(monkeypatch):
    made, asked = simulator(), []
    of = made._sizes._of_span

    def noted(model, span):
        asked.append(span)
        return of(model, span)

    monkeypatch.setattr(made._sizes, "_of_span", noted)
    for name in ("wfbp", "naive", "optimal", "mg_wfbp", "sync_easgd"):
        made.step(schedulers.build(name))
    assert len(asked) == len(set(asked)) > 3


def test_a_split_exchange_is_left_at_its_first_sum():
    """As the driver leaves it: what follows that sum, be it another one or a gather, goes under the forward pass."""
    everything = slice(0, 3)
    for compressor in ("powersgd", "dgc", "none", "topk"):
        made = simulator(SMALL, 4, compressor, "ring")
        asked = made._sizes.of(made.layers[everything])
        step = made.step(schedulers.build("dear", bucket_cap_mb=100.0)).step
        seconds = {span.half: span.end - span.start for span in step.spans}
        sums = [number for number, each in enumerate(asked) if each.kind is Sum]
        assert bool(sums) == (compressor != "topk")
        after = asked[sums[0] + 1 :] if sums else []
        half = made.pricer.halves(asked[sums[0]]).copy_seconds if sums else 0.0
        assert seconds["copy"] == pytest.approx(half + sum(map(made.pricer.seconds, after))), compressor
        assert sum(seconds.values()) >= 0.99 * sum(map(made.pricer.seconds, asked)), compressor


@pytest.mark.parametrize("name", ["wfbp", "mg_wfbp", "dear"])
def test_the_picture_has_the_passes_and_every_message(name: str, tmp_path):
    made = simulator(GOOGLENET, 16, formulas=True)
    found, timeline = made.step(schedulers.build(name)), Timeline()
    draw(found, timeline)
    timeline.save(tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    halves = ("", f" {ALL_GATHER}") if name == "dear" else ("",)
    wanted = {f"bucket {number}{half}" for number in range(len(found.groups)) for half in halves}
    assert set(spans) == {"forward", "backward", *wanted}
    last = max(spans.values(), key=lambda event: event["ts"] + event["dur"])
    assert (last["ts"] + last["dur"]) / 1e6 == pytest.approx(found.step.seconds, abs=1e-6)
    backward, first = spans["backward"], spans["bucket 0"]
    assert backward["dur"] == pytest.approx(1e6 * made.passes.backward, abs=1)
    assert backward["ts"] <= 1e6 * first["args"]["ready"] <= first["ts"] + 1
    assert first["args"]["elements"] == found.elements[0]
    if name == "dear":
        gathers = [spans[f"bucket {number} {ALL_GATHER}"] for number in range(len(found.groups))]
        assert all(each["ts"] >= 0 and each["ts"] + each["dur"] <= backward["ts"] + 1 for each in gathers)
    else:
        assert backward["ts"] == pytest.approx(1e6 * sum(made.passes.forward), abs=1)


def test_what_is_decoded_goes_under_the_next_forward_pass_as_the_all_gather_does():
    early, late = (simulator(compressing=lambda numel: 1e-3, decoding=each) for each in (None, lambda numel: 1e-3))
    for name in ("dear", "fused", "naive"):
        before, after = (each.step(schedulers.build(name)) for each in (early, late))
        assert before.compress == after.compress > 0 and before.communicate == after.communicate
        if name != "dear":
            assert after.step.seconds == pytest.approx(before.step.seconds)
            continue
        assert after.stages[0][-1][2:] == (1e-3, True)
        for first, then in zip(before.step.spans, after.step.spans, strict=True):
            longer = (then.end - then.start) - (first.end - first.start)
            assert longer == pytest.approx(1e-3 if first.half == "copy" else -1e-3)


@pytest.mark.parametrize("workers", [1, 2, 50])
def test_the_slowest_worker_is_distributed_as_the_slowest_of_all_that_are_drawn(workers):
    disturbance = Disturbance(compute=0.2, stragglers=0.05, slowdown=1.5)
    found = disturbance.slowest(workers, 20_000, np.random.default_rng(1))
    drawn = np.random.default_rng(2)
    each = np.exp(0.2 * drawn.standard_normal((20_000, workers)))
    each *= np.where(drawn.random((20_000, workers)) < 0.05, 1.5, 1.0)
    for share in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(found, share) == pytest.approx(np.quantile(each.max(1), share), rel=0.05), share


def test_undisturbed_steps_are_all_alike():
    built = schedulers.build("wfbp")
    made = simulator(ranks=8)
    found = made.step(built)
    assert quantiles(made, found, built, Disturbance()) == (found.step.seconds, found.step.seconds)
    jitter = Disturbance(compute=0.1)
    median, late = quantiles(made, found, built, jitter)
    assert found.step.seconds < median < late and quantiles(made, found, built, jitter) == (median, late)
    waiting, _ = quantiles(made, found, built, Disturbance(stragglers=1.0, slowdown=3.0))
    assert 2.999999 * found.alone <= waiting <= 3.000001 * found.step.seconds, "all workers are slow"
    _, wire = quantiles(made, found, built, Disturbance(messages=0.5))
    assert wire > found.step.seconds


def test_simulate_shows_quantiles_where_something_disturbs(tmp_path, capsys):
    path, main = tmp_path / "s.json", verb("simulate")
    line = ["--trace", "googlenet_k80", "--workers", "64", "--schedulers", "fused", "--json", str(path)]
    assert main([*line, "--compute-jitter", "0.05", "--stragglers", "0.01", "--slowdown", "2"]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["step_seconds"] < row["step_seconds_p50"] < row["step_seconds_p99"]
    assert f"{1e3 * row['step_seconds_p99']:.2f}" in capsys.readouterr().out
    assert main(line) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["step_seconds_p99"] is None and "p99" not in capsys.readouterr().out
    for words, problem in (
        (["--stragglers", "0.1"], "--stragglers and --slowdown: go together"),
        (["--compute-jitter", "-1"], "--compute-jitter: needs 0 to 10, got -1"),
        (["--stragglers", "2", "--slowdown", "2"], "--stragglers: needs 0 to 1, got 2"),
        (["--slowdown", "nan"], "--slowdown: needs 1 to 1e+06, got nan"),
    ):
        assert main([*line, *words]) == 2
        assert problem in capsys.readouterr().err
