"""The commands of claims that need a cluster: who has one can copy them, and no rate would burn the run."""

import re
from pathlib import Path

import pytest

from suite.compose.resolve import resolve
from suite.studies.study import Study, available
from wirebench.config import loader
from wirebench.training.optimizers.rates import learning_rate

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = sorted(
    {
        claim.command
        for name in available()
        for claim in Study(name).published.claims.values()
        if claim.command.startswith("horovodrun ")
    }
)
REFERENCE = {
    # Goyal et al. 2017: 0.1 for a batch of 256; Krizhevsky et al. 2012 as torchvision has it: 0.01 for 256.
    "resnet50": (0.1, 256), "alexnet": (0.01, 256),
}  # fmt: skip


def parts(command: str) -> tuple[int, str, list[str]]:
    """Ranks, the config, and the overrides."""
    ranks = re.match(r"horovodrun -np (\d+) -H HOST:1,\.\.\. python train\.py (\S+)(.*)", command)
    assert ranks, f"{command}: has no hosts"
    return int(ranks[1]), ranks[2], ranks[3].split()


@pytest.mark.parametrize("command", [each for each in COMMANDS if "train.py" in each])
def test_a_clusters_command_resolves_and_its_rates_follow_the_linear_rule(command: str) -> None:
    """At the first step, at the peak, and in the last epoch, at the command's ranks and batch."""
    ranks, config, overrides = parts(command)
    settings = loader.load(ROOT / config, overrides)
    resolve(settings)
    if settings.model.name not in REFERENCE:
        assert settings.model.name == "replay", "what is timed alone has no rate to choose"
        return
    rate, batch = REFERENCE[settings.model.name]
    peak = rate * ranks * settings.data.batch_size / batch
    section, epochs = settings.optimizer, float(settings.train.epochs)
    rates = [learning_rate(section, at, epochs, ranks) for at in (0.0, section.warmup_epochs, epochs - 1)]
    fallen = section.gamma ** sum(milestone < epochs for milestone in section.milestones)
    assert section.warmup_epochs == 5.0 and section.schedule == "step"
    assert rates == pytest.approx([section.lr / ranks, peak, peak * fallen])


def test_every_command_of_several_hosts_names_them() -> None:
    assert len(COMMANDS) > 10 and all(" -H HOST:1,... " in each for each in COMMANDS)
