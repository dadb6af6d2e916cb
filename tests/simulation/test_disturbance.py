"""Steps that are disturbed at random, beside draws of every single worker."""

import json

import numpy as np
import pytest

from tests.cli.verbs import verb
from tests.simulation.test_simulator import simulator
from wirebench import schedulers
from wirebench.simulation.disturbance import Disturbance, quantiles


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
