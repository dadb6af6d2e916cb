"""Commands for a cluster: who has one can copy them, and no rate would burn the run."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from papers import cli as study
from papers.study import Study, available
from tests.distributed.launch import last_of_each
from tests.papers import verb
from wirebench.compose import run as train
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.training.optimizers.rates import learning_rate

ROOT = Path(__file__).resolve().parents[2]
PAPERS = sorted((ROOT / "configs/papers").glob("*.toml"))
PLACES = {"HOST": "h1", "FOLDER": "/nowhere"}
CLAIMED = sorted(
    {claim.cluster for name in available() for claim in Study(name).published.claims.values() if claim.cluster}
)


def printed(command: str) -> list[str]:
    """The commands that a claim's one would run, one for each config and its overrides."""
    words = [PLACES.get(word, word) for word in shlex.split(command)]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert study.main([*words[2:], "--dry-run"], verb.nothing) == 0
    return out.getvalue().splitlines()


LINEAR = {
    # Goyal et al. 2017: 0.1 for a batch of 256; Krizhevsky et al. 2012 as torchvision has it: 0.01 for 256.
    "resnet50": (0.1, 256), "resnet18": (0.1, 256), "alexnet": (0.01, 256), "googlenet": (0.01, 256),
}  # fmt: skip
OWN = {"resnet_cifar": 0.1, "vgg_cifar": 0.1}
"""Shi et al., ICDCS 2019: of 4 workers, whatever their batch."""
SMALL = [
    "data.name=synthetic", "data.batch_size=2", "data.test_size=0", "engine.name=local", "engine.workers=2",
    "train.max_steps=2", "train.warmup_steps=0", "train.eval_every=0", "train.precision=fp32",
    "output.tensorboard=false", "output.trace_steps=0",
]  # fmt: skip


def said(path: Path) -> str:
    """The command in a config's first lines."""
    lines = [line.removeprefix("#   ") for line in path.read_text().splitlines() if line.startswith("#   ")]
    assert len(lines) == 1, f"{path}: has one command"
    return lines[0]


def parts(command: str) -> tuple[int, str, list[str]]:
    """Ranks, the config, and the overrides."""
    words = re.match(r"horovodrun -np (\d+) -H (\w+:\d\S*) python train\.py (.*)", command)
    assert words, f"{command}: has no hosts"
    hosts = words[2].split(",")
    assert hosts[-1] == "..." or sum(int(host.partition(":")[2]) for host in hosts) == int(words[1])
    config, *overrides = shlex.split(words[3])
    return int(words[1]), config, overrides


def check_rates(command: str) -> None:
    """At the first step, at the peak, and in the last epoch, at the command's ranks and batch."""
    ranks, config, overrides = parts(command)
    settings = loader.load(ROOT / config, overrides)
    resolve(settings)
    name = settings.model.name
    if name == "replay":
        return  # what is timed alone has no rate to choose
    if name in OWN:
        peak = OWN[name]
        assert ranks == 4
    else:
        rate, batch = LINEAR[name]
        peak = rate * ranks * settings.data.batch_size / batch
    section, epochs = settings.optimizer, float(settings.train.epochs)
    rates = [learning_rate(section, at, epochs, ranks) for at in (0.0, section.warmup_epochs, epochs - 1)]
    fallen = section.gamma ** sum(milestone < epochs for milestone in section.milestones)
    assert section.warmup_epochs > 0
    assert rates == pytest.approx([peak / ranks if ranks > 1 else 0.0, peak, peak * fallen])


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_the_rates_of_a_papers_config_follow_the_source(path: Path) -> None:
    check_rates(said(path))


@pytest.mark.parametrize("command", CLAIMED)
def test_a_claims_command_prints_what_it_would_run(command: str) -> None:
    """Each of its commands resolves, names files that are there, and has rates that follow the source."""
    commands = printed(command)
    trainings = {re.sub(r"(train\.seed|output\.dir)=\S+", r"\1=0", each) for each in commands if " train.py " in each}
    assert commands and all(" train.py " in each or " bench collectives " in each for each in commands)
    for each in trainings:
        check_rates(each)


def test_every_measured_claim_of_a_paper_has_a_command_for_a_cluster() -> None:
    without = {
        (name, claim.id)
        for name in ("gs_sgd", "iwp", "mg_wfbp", "flexreduce")
        for claim in Study(name).published.claims.values()
        if not claim.cluster
    }
    computed = {("iwp", "densifies"), ("flexreduce", "mean_calls"), ("flexreduce", "bound_on_calls")}
    assert computed <= without
    # Of MG-WFBP's, what its authors simulated is simulated, and what we emulate is emulated.
    assert {name for name, _ in without - computed} == {"mg_wfbp"}


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_a_papers_config_says_what_it_is_for_and_little_else(path: Path) -> None:
    text = path.read_text()
    head = text.partition("\n[")[0]
    settings = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert re.search(r"Table|Fig\.|section|no row", head), "names where it stands in its paper"
    assert parts(said(path))[1] == f"configs/papers/{path.name}"
    assert "extends" not in text or len(settings) <= 15


def test_the_papers_experiments_have_a_config_each() -> None:
    cifar = ("dense", "gs_sgd", "gs_sgd_literal", "gtopk", "dgc", "sketched_sgd", "iwp")
    imagenet = ("dense", "iwp", "mg_wfbp", "wfbp", "sync_easgd")
    wanted = {f"cifar10_{net}_{method}" for net in ("resnet20", "vgg16") for method in cifar}
    wanted |= {f"imagenet_{net}_{method}" for net in ("resnet50", "alexnet", "googlenet") for method in imagenet}
    there = {path.stem for folder in ("configs", "configs/papers") for path in (ROOT / folder).glob("*.toml")}
    assert wanted <= there


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_a_papers_config_trains(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Two steps on random images of its own size."""
    config = loader.load(path)
    shape = (32, 10) if config.data.name == "cifar10" else (config.data.options["image_size"], 1000)
    images = [f"data.image_size={shape[0]}", f"data.num_classes={shape[1]}", "data.train_size=64"]
    code = train.main(last_of_each([path, *SMALL, *images, f"output.dir={tmp_path}"]))
    assert code == 0, capsys.readouterr().err
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["status"], record["steps_done"]) == ("finished", 2)
