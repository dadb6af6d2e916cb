"""Papers' names for methods that are settings of several parts here."""

from collections.abc import Mapping

from wirebench import compressors, schedulers
from wirebench.config.loader import Config
from wirebench.errors import UserError

_LOCAL = "scheduler.name=outer"
_PLAIN_MEAN = f"{_LOCAL} scheduler.rate=1 scheduler.momentum=0 scheduler.nesterov=false"
_MUON = "optimizer.name=muon optimizer.nesterov=true optimizer.momentum=0.95"
PAPERS: Mapping[str, str] = {
    "adamw": "optimizer.name=adamw", "dense": "compressor.name=none", "diloco": _LOCAL,
    "distributed_lion": "compressor.name=lion_sign", "local_sgd": _PLAIN_MEAN,
    "muloco": f"{_LOCAL} {_MUON}", "muon": _MUON, "orth_dion": "compressor.name=dion compressor.orthonormal=true",
    "qgz": "compressor.name=quantised_sum", "sparseloco": f"{_PLAIN_MEAN} compressor.name=chunk_topk",
    "streaming_diloco": f"{_LOCAL} scheduler.fragments=3 scheduler.delay=5 scheduler.keep=0.5",
    "zeropp": "compressor.name=quantised_sum",
}  # fmt: skip
"""The settings by the name in lower case; docs/language_models.md has the rest of each."""


def refuse_names(given: Config) -> None:
    """UserError for a compressor or a scheduler by a paper's name; the error gives the settings to use instead."""
    for kind, section in ((compressors.PLUGINS, given.compressor), (schedulers.PLUGINS, given.scheduler)):
        name = section.name.lower().replace("-", "_")
        if name in PAPERS and name not in kind.available():
            raise UserError(
                f"{kind.kind}.name: no {kind.kind} {section.name!r}; that is {PAPERS[name]} (docs/language_models.md)"
            )
