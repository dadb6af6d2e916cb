"""The planner combines what train.py takes, and nothing else."""

import pytest

from wirebench import compressors, schedulers
from wirebench.compose.resolve import PLAIN_SGD, resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.planner.compositions import clash


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scheduler", schedulers.available())
def test_the_planner_refuses_what_train_py_refuses(scheduler: str) -> None:
    """Beside the optimizer that suits all compressors, on the collectives that a planner would try first."""
    built = schedulers.build(scheduler)
    for collective in ("ring", "native"):
        for compressor in compressors.available():
            words = [f"scheduler.name={scheduler}", f"compressor.name={compressor}", f"collective.name={collective}"]
            given = loader.load("configs/smoke.toml", [*words, *PLAIN_SGD, "output.health_every=0"])
            try:
                resolve(given)
                refused = ""
            except UserError as error:
                refused = str(error)
            said = clash(built, compressor, collective)
            assert bool(said) == bool(refused), (scheduler, compressor, collective, said, refused)
