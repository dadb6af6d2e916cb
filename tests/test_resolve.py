"""What a config leaves open is filled in as the compressor's paper has it, and what makes no sense is refused."""

import inspect
import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import compressors
from compose import compose
from compressors.base import Method
from resolve import refuse_cut, resolve
from tests.distributed.launch import CONFIG, here
from tests.helpers import cut, lay_out
from train import conduct
from wirebench import config
from wirebench.config import OptimizerConfig
from wirebench.errors import UserError
from wirebench.optim import Decay
from wirebench.sections import CollectiveConfig


def resolved(**tables: Any) -> config.Config:
    return resolve(config.from_dict(tables))


@pytest.mark.parametrize(("name", "collective"), [("topk", "native"), ("gtopk", "tree"), ("none", "native")])
def test_the_collective_is_the_papers_unless_the_config_names_one(name: str, collective: str) -> None:
    assert resolved(compressor={"name": name}).collective.name == collective
    assert resolved(compressor={"name": name}, collective={"name": "ring"}).collective.name == "ring"


def test_options_of_the_filled_in_collective_are_written_out() -> None:
    filled = resolved(compressor={"name": "gtopk"})
    assert config.from_dict(config.to_dict(filled)) == filled
    assert resolve(filled) == filled


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
    methods = {name: cast(Method, compressors.build(name)) for name in compressors.available()}
    bring = {name for name, each in methods.items() if each.collective} if section is CollectiveConfig else set()
    bring = bring or {name for name, each in methods.items() if each.owns_momentum}
    assert set(re.findall(r"\w+", inspect.getdoc(section) or "")) & methods.keys() - {"none"} == bring


def test_momentum_in_both_places_is_refused() -> None:
    with pytest.raises(UserError, match=r"optimizer\.momentum: 'dgc' applies momentum itself; set it to 0"):
        resolved(compressor={"name": "dgc", "momentum": 0.9}, optimizer={"momentum": 0.9})


def test_a_method_that_needs_the_whole_model_refuses_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressors.PLUGINS.load("topk"), "whole_model", "for a reason")
    settings = resolved(compressor={"name": "topk"}, scheduler={"name": "wfbp"})
    refuse_cut(settings, [range(0, 3)])
    with pytest.raises(
        UserError, match="'wfbp' cuts the model into 2 buckets, but 'topk' needs it whole: for a reason"
    ):
        refuse_cut(settings, [range(0, 1), range(1, 3)])


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
    run = compose(config.load(CONFIG, [f"output.dir={folder}", "engine.workers=2", "train.max_steps=8", *overrides]))
    conduct(run)
    return run.workers[0].flat.param.clone()


@pytest.mark.parametrize("decay_norm", ["true", "false"])
def test_all_sent_without_masking_is_dense_momentum_sgd_with_weight_decay(decay_norm: str, tmp_path: Path) -> None:
    both = ["optimizer.momentum=0.9", "optimizer.weight_decay=0.05", f"optimizer.decay_norm={decay_norm}"]
    dense = weights(tmp_path / "dense", "compressor.name=none", *both)
    options = ["compressor.density=1.0", "compressor.masking=false", "compressor.dense_below=1"]
    corrected = weights(tmp_path / "dgc", "compressor.name=dgc", *options, *both)
    torch.testing.assert_close(corrected, dense, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(weights(tmp_path / "none", "compressor.name=none"), dense, rtol=1e-4, atol=1e-6)


def test_a_run_says_in_its_config_who_applied_the_momentum(tmp_path: Path) -> None:
    assert here(2, [CONFIG, f"output.dir={tmp_path}", "compressor.name=dgc", "optimizer.momentum=0.9"]) == 0
    written = config.load(tmp_path / "config.toml")
    assert (written.compressor.options["momentum"], written.optimizer.momentum) == (0.9, 0.0)
