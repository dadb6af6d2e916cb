"""What a config leaves open is filled in as the compressor's paper has it, and what makes no sense is refused."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.launch import CONFIG, here
from tests.helpers import cut, lay_out
from wirebench import compressors
from wirebench.compose.build import compose
from wirebench.compose.papers import PAPERS
from wirebench.compose.resolve import PLAIN_SGD, compressor_of, notes, refuse_cut, refuse_workers, resolve
from wirebench.config import loader
from wirebench.config.loader import OptimizerConfig
from wirebench.config.sections import CollectiveConfig
from wirebench.errors import UserError
from wirebench.gradient.weight_decay import Decay
from wirebench.training.loop import conduct


def resolved(**tables: Any) -> loader.Config:
    return resolve(loader.from_dict(tables))


@pytest.mark.parametrize(("name", "collective"), [("topk", "native"), ("gtopk", "tree"), ("none", "native")])
def test_the_collective_is_the_papers_unless_the_config_names_one(name: str, collective: str) -> None:
    assert resolved(compressor={"name": name}).collective.name == collective
    assert resolved(compressor={"name": name}, collective={"name": "ring"}).collective.name == "ring"


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_name_says_what_it_is_here(name: str) -> None:
    plain = PLAIN_SGD if "lion" in PAPERS[name] or "dion" in PAPERS[name] else ()
    resolve(loader.load("configs/gpt_python_sources.toml", [*PAPERS[name].split(), *plain]))
    with pytest.raises(UserError, match=rf"^compressor\.name: no compressor '{name}'; that is {PAPERS[name]} \(docs"):
        resolved(compressor={"name": name})


def test_a_papers_name_in_its_own_letters() -> None:
    with pytest.raises(
        UserError, match=r"^scheduler\.name: no scheduler 'Streaming-DiLoCo'; that is scheduler\.name=outer"
    ):
        resolved(scheduler={"name": "Streaming-DiLoCo"})


@pytest.mark.parametrize(("name", "limit"), [("dgc", 1), ("topk", 0)])
def test_what_is_sent_dense_is_the_papers_unless_the_config_says(name: str, limit: int) -> None:
    assert resolved(compressor={"name": name}).compressor.dense_below == limit
    assert resolved(compressor={"name": name, "dense_below": 0}).compressor.dense_below == 0


def test_a_method_that_corrects_the_momentum_takes_it_over() -> None:
    taken = resolved(compressor={"name": "dgc"}, optimizer={"momentum": 0.8, "nesterov": True})
    assert (taken.compressor.options["momentum"], taken.compressor.options["nesterov"]) == (0.8, True)
    assert (taken.optimizer.momentum, taken.optimizer.nesterov) == (0.0, False)
    own = resolved(compressor={"name": "dgc"}, optimizer={"momentum": 0.0})
    assert own.compressor.options["momentum"] == 0.9
    without = resolved(compressor={"name": "dgc", "momentum": 0.0}, optimizer={"momentum": 0.8})
    assert (without.compressor.options["momentum"], without.optimizer.momentum) == (0.0, 0.8)
    other = resolved(compressor={"name": "topk"}, optimizer={"momentum": 0.8})
    assert other.optimizer.momentum == 0.8


@pytest.mark.parametrize("section", [CollectiveConfig, OptimizerConfig])
def test_the_help_names_the_methods_that_bring_their_own(section: type) -> None:
    methods = {name: compressors.build(name) for name in compressors.available()}
    bring = {name for name, each in methods.items() if each.collective} if section is CollectiveConfig else set()
    bring = bring or {name for name, each in methods.items() if each.owns_momentum}
    assert set(re.findall(r"\w+", inspect.getdoc(section) or "")) & methods.keys() - {"none"} == bring


def test_momentum_in_both_places_is_refused() -> None:
    with pytest.raises(UserError, match=r"optimizer\.momentum: 'dgc' applies momentum itself; set it to 0"):
        resolved(compressor={"name": "dgc", "momentum": 0.9}, optimizer={"momentum": 0.9})


UPDATES = [name for name in compressors.available() if compressors.class_of(name).makes_update]


@pytest.mark.parametrize("name", UPDATES)
def test_what_returns_updates_goes_with_plain_sgd(name: str) -> None:
    plain: dict[str, object] = {"momentum": 0.0, "weight_decay": 0.1}
    assert resolved(compressor={"name": name}, optimizer=plain).optimizer.weight_decay == 0.1
    with pytest.raises(UserError, match=r"plain SGD applies; set optimizer\.momentum=0 optimizer\.nesterov=false$"):
        resolved(compressor={"name": name}, optimizer={"momentum": 0.9, "nesterov": True})
    words = r"optimizer\.name=sgd optimizer\.momentum=0 optimizer\.beta2=0\.999$"
    with pytest.raises(UserError, match=rf"^optimizer: '{name}' returns updates, .* set {words}"):
        resolved(compressor={"name": name}, optimizer={"name": "adamw", "momentum": 0.9, "beta2": 0.95})
    assert not compressor_of(resolved(compressor={"name": name}, optimizer=plain)).whole_model
    clipped = compressor_of(resolved(compressor={"name": name}, optimizer=plain | {"clip": 1.0}))
    assert clipped.whole_model.startswith("optimizer.clip scales each worker's gradient")
    with pytest.raises(UserError, match=r"applies a momentum to what it is given$"):
        resolved(compressor={"name": name}, optimizer=plain, scheduler={"name": "outer"})
    with pytest.raises(UserError, match=r"compressor\.dense_below: this compressor applies a momentum"):
        resolved(compressor={"name": name, "dense_below": 10}, optimizer=plain)


@pytest.mark.parametrize(("name", "decay"), [("lion_sign", 0.5), ("dgc", 0.0)])
def test_the_weight_decay_of_an_update_stays_with_the_optimizer(name: str, decay: float, tmp_path: Path) -> None:
    settings = [f"compressor.name={name}", "compressor.dense_below=0", *PLAIN_SGD, "optimizer.weight_decay=0.5"]
    settings += [f"output.dir={tmp_path}"]
    run = compose(loader.load(CONFIG, settings))
    for worker, lane in zip(run.workers, run.lanes, strict=True):
        assert {group["weight_decay"] for group in worker.optimizer.param_groups} == {decay}
        assert (lane.decay is None) == bool(decay)
    run.close()


def test_a_method_that_needs_the_whole_model_refuses_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressors.PLUGINS.load("topk"), "whole_model", "for a reason")
    settings = resolved(compressor={"name": "topk"}, scheduler={"name": "wfbp"})
    refuse_cut(settings, [range(0, 3)])
    with pytest.raises(
        UserError, match="'wfbp' cuts the model into 2 buckets, but 'topk' needs it whole: for a reason"
    ):
        refuse_cut(settings, [range(0, 1), range(1, 3)])


@pytest.mark.parametrize(
    ("words", "workers", "refused"),
    [
        (["compressor.name=quantised_sum", "compressor.group=3"], 4, "groups of 3 do not divide the 4 workers"),
        (["compressor.name=quantised_sum", "compressor.group=3"], 6, ""),
        (["compressor.name=quantised_sum", "compressor.group=3", "train.elastic=true"], 4, ""),
        (["compressor.name=iwp", "compressor.voters=3"], 2, "3 are more than the 2 workers"),
        (["compressor.name=iwp", "compressor.voters=3"], 1, ""),
    ],
)
def test_a_number_of_workers_that_a_method_cannot_do_with_is_refused(
    words: list[str], workers: int, refused: str
) -> None:
    settings = loader.load(CONFIG, [*words, f"engine.workers={workers}"])
    if not refused:
        refuse_workers(settings)
        return
    with pytest.raises(UserError, match=refused):
        refuse_workers(settings)


def test_clipping_refuses_a_cut() -> None:
    refuse_cut(resolved(compressor={"name": "dgc"}), [range(0, 1), range(1, 3)])
    with pytest.raises(UserError, match="'dgc' needs it whole: clip limits the norm of the whole gradient"):
        refuse_cut(resolved(compressor={"name": "dgc", "clip": 0.5}), [range(0, 1), range(1, 3)])


@pytest.mark.parametrize("decay_norm", [True, False])
def test_weight_decay_joins_the_gradient(decay_norm: bool) -> None:
    (bucket,) = cut(torch.zeros(5), lay_out([(3, 1), (2,)]), [range(0, 2)], param=torch.full((5,), 2.0))
    Decay(OptimizerConfig(weight_decay=0.5, decay_norm=decay_norm)).join(bucket)
    assert bucket.grad.tolist() == [1.0, 1.0, 1.0, *([1.0, 1.0] if decay_norm else [0.0, 0.0])]


def weights(folder: Path, *overrides: str) -> torch.Tensor:
    """Parameters after eight steps of two workers."""
    run = compose(loader.load(CONFIG, [f"output.dir={folder}", "engine.workers=2", "train.max_steps=8", *overrides]))
    conduct(run)
    return run.workers[0].flat.gather_weights()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("decay_norm", ["true", "false"])
def test_all_sent_without_masking_is_dense_momentum_sgd_with_weight_decay(decay_norm: str, tmp_path: Path) -> None:
    both = ["optimizer.momentum=0.9", "optimizer.weight_decay=0.05", f"optimizer.decay_norm={decay_norm}"]
    dense = weights(tmp_path / "dense", "compressor.name=none", *both)
    options = ["compressor.density=1.0", "compressor.masking=false", "compressor.dense_below=1"]
    corrected = weights(tmp_path / "dgc", "compressor.name=dgc", *options, *both)
    torch.testing.assert_close(corrected, dense, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(weights(tmp_path / "none", "compressor.name=none"), dense, rtol=1e-4, atol=1e-6)


def recorded(folder: Path, *overrides: str, **tables: Any) -> loader.Config:
    """The config of a run of `tables` as its record has it, loaded with overrides and resolved again."""
    path = folder / "config.toml"
    path.write_text(loader.dump(resolved(**tables)))
    return resolve(loader.load(path, overrides))


TAKEN = {"compressor": {"name": "gs_sgd"}, "optimizer": {"momentum": 0.8, "nesterov": True}}


def test_a_record_repeats_its_run_and_keeps_what_was_asked(tmp_path: Path) -> None:
    first = resolved(**TAKEN)
    assert first.asked == {
        "compressor": {"dense_below": -1},
        "collective": {"name": ""},
        "optimizer": {"momentum": 0.8, "nesterov": True},
    }
    assert recorded(tmp_path, **TAKEN) == first
    assert recorded(tmp_path, "train.seed=3", "compressor.name=gs_sgd", **TAKEN).asked == first.asked


def test_another_compressor_gets_what_was_asked(tmp_path: Path) -> None:
    dense = recorded(tmp_path, "compressor.name=none", **TAKEN)
    assert (dense.optimizer.momentum, dense.optimizer.nesterov, dense.collective.name) == (0.8, True, "native")
    dgc = recorded(tmp_path, "compressor.name=dgc", **TAKEN)
    assert dgc == resolved(compressor={"name": "dgc"}, optimizer=TAKEN["optimizer"])
    assert (dgc.compressor.dense_below, dgc.compressor.options["momentum"]) == (1, 0.8)
    own = recorded(tmp_path, "compressor.momentum=0", "compressor.nesterov=false", **TAKEN)
    assert (own.optimizer.momentum, own.compressor.options["momentum"]) == (0.8, 0)


def test_what_is_given_anew_counts(tmp_path: Path) -> None:
    overrides = ["compressor.name=none", "optimizer.momentum=0.5", "collective.name=ring"]
    dense = recorded(tmp_path, *overrides, **TAKEN)
    assert (dense.optimizer.momentum, dense.optimizer.nesterov, dense.collective.name) == (0.5, True, "ring")
    assert dense.asked == {"compressor": {"dense_below": -1}}
    small = recorded(tmp_path, "compressor.dense_below=7", **TAKEN)
    assert (small.compressor.dense_below, "compressor" in small.asked) == (7, False)


def test_what_was_set_by_hand_stays_with_another_compressor(tmp_path: Path) -> None:
    tables = {"compressor": {"name": "gtopk", "dense_below": 5}, "collective": {"name": "star"}}
    other = recorded(tmp_path, "compressor.name=topk", **tables)
    assert (other.compressor.dense_below, other.collective.name) == (5, "star")


def test_another_scheduler_chooses_its_collective(tmp_path: Path) -> None:
    tables = {"scheduler": {"name": "dear"}}
    assert resolved(**tables).collective.name == "ring"
    assert recorded(tmp_path, "scheduler.name=wfbp", **tables).collective.name == "native"
    set_by_hand = {**tables, "collective": {"name": "tree"}}
    assert recorded(tmp_path, "scheduler.name=wfbp", **set_by_hand).collective.name == "tree"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"asked": 3}, "asked: is a section"),
        ({"asked": {"optimiser": {}}}, "optimiser: no such section; did you mean 'optimizer'?"),
        ({"asked": {"optimizer": {"momentum": "x"}}}, "optimizer.momentum: needs a number"),
    ],
)
def test_a_damaged_table_of_what_was_asked_is_refused(table: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        loader.from_dict(table)


@pytest.mark.parametrize(
    ("compressor", "momentum", "said"),
    [
        ({"name": "dgc"}, 0.0, ["note: dgc applies its own momentum, 0.9, although optimizer.momentum = 0"]),
        ({"name": "fetch_sgd"}, 0.0, ["note: fetch_sgd applies its own momentum, 0.9, although"]),
        ({"name": "dgc"}, 0.9, []),
        ({"name": "dgc", "momentum": 0.5}, 0.0, []),
        ({"name": "dgc", "momentum": 0.0}, 0.0, []),
        ({"name": "topk"}, 0.0, []),
    ],
)
def test_a_momentum_that_nobody_asked_for_is_told(compressor: dict[str, Any], momentum: float, said: list[str]) -> None:
    found = notes(loader.from_dict({"compressor": compressor, "optimizer": {"momentum": momentum}}), 10, 10)
    assert len(found) == len(said)
    assert all(line.startswith(words) for line, words in zip(found, said, strict=True))


@pytest.mark.parametrize(
    ("steps", "more", "said"),
    [
        (29, {}, ["note: 29 steps are too few for scheduler.every=30: no mean of the model is applied, and it is"]),
        (60, {}, []),
        (61, {}, ["note: the last 1 of 61 steps are in no mean"]),
        (32, {"delay": 5}, ["note: 32 steps are too few for scheduler.every=30 and scheduler.delay=5: no mean of the"]),
        (
            35,
            {"fragments": 3},
            ["note: 35 steps are too few for scheduler.every=30: no mean of a part of the model is"],
        ),
        (60, {"fragments": 3, "delay": 5}, ["note: the last 30 of 60 steps are in no mean"]),
    ],
)
def test_local_steps_that_nobody_exchanges_are_told(steps: int, more: dict[str, int], said: list[str]) -> None:
    found = notes(loader.from_dict({"scheduler": {"name": "outer", "every": 30, **more}}), steps, steps)
    assert len(found) == len(said)
    assert all(line.startswith(words) for line, words in zip(found, said, strict=True))


@pytest.mark.parametrize(
    ("steps", "warmup", "said"), [(60, 0.05, True), (400, 0.05, False), (1098, 0.05, False), (60, 0.0, False)]
)
def test_a_short_run_that_warms_up_is_told(steps: int, warmup: float, said: bool) -> None:
    """Of 1,098 steps an epoch has, 55 are its warm-up."""
    given = loader.from_dict({"optimizer": {"warmup_epochs": warmup}, "train": {"epochs": 1, "max_steps": steps}})
    wanted = "note: the learning rate rises over 55 steps (optimizer.warmup_epochs = 0.05), and this run ends after 60"
    assert notes(given, steps, 1098) == ([f"{wanted} of 1098"] if said else [])


@pytest.mark.parametrize(
    ("context", "length", "becomes", "said"),
    [(256, None, (256, 256), []), (None, 64, (64, 64), []), (None, None, (128, 128), []),
     (256, 64, (256, 64), ["note: sequences have 64 tokens (data.length), and the model takes 256 (model.context)"])],
)  # fmt: skip
def test_a_language_model_is_trained_at_its_context(
    context: int | None, length: int | None, becomes: tuple[int, int], said: list[str]
) -> None:
    sections = {"model": {"name": "gpt", "context": context}, "data": {"name": "python_sources", "length": length}}
    given = loader.from_dict({
        kind: {key: value for key, value in section.items() if value is not None} for kind, section in sections.items()
    })  # fmt: skip
    found = resolve(given)
    assert (found.model.options["context"], found.data.options["length"]) == becomes
    assert [line for line in notes(given, 10, 10) if "data.length" in line] == said


def test_a_run_begins_with_its_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"output.dir={tmp_path}", "train.max_steps=1", "compressor.name=dgc"]
    assert here(2, [CONFIG, *settings, "optimizer.momentum=0"]) == 0
    assert capsys.readouterr().out.startswith("note: dgc applies its own momentum, 0.9")
