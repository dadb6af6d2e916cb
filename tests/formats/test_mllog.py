"""MLPerf's log lines: their grammar, and that they say what the record says, when it says it."""

import copy
import json
from datetime import datetime

import pytest

from tests.cli.verbs import ROOT, run
from tests.training.test_trainer import record_of
from wirebench.formats import mllog
from wirebench.record import recorded

KINDS = {"INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"}


def events(lines):
    """(key, value, metadata, time_ms) of each line; what is no line of the grammar fails."""
    found, opened = [], set()
    for line in lines:
        token, _, text = line.partition(" ")
        assert token == ":::MLLOG"
        event = json.loads(text)
        assert list(event) == ["namespace", "time_ms", "event_type", "key", "value", "metadata"]
        assert isinstance(event["time_ms"], int)
        assert isinstance(event["metadata"], dict)
        assert event["event_type"] in KINDS
        stem = event["key"].removesuffix("_start").removesuffix("_stop")
        if event["event_type"] == "INTERVAL_START":
            assert event["key"] == f"{stem}_start"
            assert stem not in opened
            opened.add(stem)
        if event["event_type"] == "INTERVAL_END":
            assert event["key"] == f"{stem}_stop"
            opened.remove(stem)
        found.append((event["key"], event["value"], event["metadata"], event["time_ms"]))
    assert not opened
    times = [when for *_, when in found]
    assert times == sorted(times)
    return found


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return record_of(tmp_path_factory.mktemp("logged"), train__eval_every=2, train__epochs=3, optimizer__scale_lr=True)


def test_a_log_says_what_its_record_says(record):
    found = events(mllog.lines(record))
    value = {key: value for key, value, *_ in found}
    assert value["submission_benchmark"] == "toy_synthetic"
    assert (value["global_batch_size"], value["train_samples"], value["eval_samples"]) == (12, 48, 10)
    assert value["opt_base_learning_rate"] == pytest.approx(0.15)
    assert value["wirebench_composition"]["compressor"]["name"] == "none"
    assert value["throughput"] == record["images_per_second"]["median"]
    assert "submission_org" not in value
    shown = [(key, metadata.get("epoch_num")) for key, _, metadata, _ in found if key.startswith(("epoch", "eval_s"))]
    evaluated = [("eval_start", 2), ("eval_stop", 2)], [("eval_start", 3), ("eval_stop", 3)]
    one, two, three = ([("epoch_start", n), ("epoch_stop", n)] for n in (1, 2, 3))
    assert [each for each in shown if each[0] != "eval_samples"] == [
        *one, *two, *evaluated[0], *three, *evaluated[1],
    ]  # fmt: skip
    reached = [(value, metadata["epoch_num"]) for key, value, metadata, _ in found if key == "eval_accuracy"]
    assert reached == [(entry["top1"], entry["epoch"] + 1) for entry in record["history"] if entry["top1"] is not None]


SGD = {"sgd_opt_momentum": 0.8, "opt_weight_decay": 0.01}
ADAMW = {"opt_adamw_beta_1": 0.8, "opt_adamw_beta_2": 0.99, "opt_adamw_epsilon": 1e-6, "opt_adamw_weight_decay": 0.01}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sgd", SGD),
        (None, SGD),  # a record of the time when there was no other
        ("adamw", ADAMW),
        ("muon", {"wirebench_muon_momentum": 0.8, "opt_weight_decay": 0.01, **ADAMW}),
    ],
)
def test_an_optimizer_is_logged_as_what_it_is(record, name, options):
    other = copy.deepcopy(record)
    section = other["config"]["optimizer"]
    section |= {"name": name, "momentum": 0.8, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.01}
    if name is None:
        del section["name"]
    found = {key: value for key, value, *_ in events(mllog.lines(other))}
    assert found["opt_name"] == (name or "sgd")
    own = ("sgd_opt", "opt_adamw", "opt_weight_decay", "wirebench_muon")
    assert {key: value for key, value in found.items() if key.startswith(own)} == options


def test_times_are_those_of_the_record(record):
    found = events(mllog.lines(record))
    origin = 1000 * datetime.fromisoformat(record["environment"]["utc"]).timestamp()

    def seconds(name, epoch=None):
        (when,) = [w for key, _, metadata, w in found if key == name and metadata.get("epoch_num") == epoch]
        return (when - origin) / 1000

    last = record["history"][-1]
    assert seconds("init_start") == pytest.approx(-record["startup_seconds"], abs=1e-3)
    assert seconds("init_stop") == seconds("run_start") == 0
    assert seconds("run_stop") == pytest.approx(record["seconds_total"], abs=1e-3)
    assert seconds("eval_stop", 3) == pytest.approx(last["seconds_total"], abs=1e-3)
    assert seconds("eval_stop", 3) - seconds("eval_start", 3) == pytest.approx(last["eval_seconds"], abs=2e-3)


@pytest.mark.parametrize(
    ("status", "target", "word"),
    [
        ("finished", 0.0, "success"),
        ("finished", 1.1, "aborted"),
        ("interrupted", 0.0, "aborted"),
        ("diverged", 0, "aborted"),
    ],
)
def test_success_is_a_finished_run_that_is_as_good_as_expected(record, status, target, word):
    other = copy.deepcopy(record) | {"status": status}
    other["config"]["expected"]["top1"] = target
    *_, (key, _, metadata, _) = events(mllog.lines(other))
    assert (key, metadata) == ("run_stop", {"status": word, "wirebench_status": status})


def test_an_older_record_leaves_out_what_it_does_not_know(tmp_path):
    record = recorded.read(ROOT / "results/cpu-2core/smoke")
    younger = ("samples", "startup_seconds")
    record |= {"history": [{k: v for k, v in each.items() if k != "eval_seconds"} for each in record["history"]]}
    (tmp_path / "record.json").write_text(json.dumps({k: v for k, v in record.items() if k not in younger}))
    shown = run("show", "--mllog", tmp_path)
    assert shown.returncode == 0
    found = events(shown.stdout.splitlines())
    assert not {"init_start", "train_samples", "eval_start"} & {key for key, *_ in found}
    assert [value for key, value, *_ in found if key == "eval_accuracy"][-1] == pytest.approx(0.99, abs=0.01)
