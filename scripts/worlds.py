"""Train with a host that is lost and one that comes, and without, and compare where both end: accuracy over seeds.

python scripts/worlds.py --data FOLDER                     both engines, three seeds: about 50 minutes on two cores
python scripts/worlds.py --data FOLDER --engine horovod --seeds 0 1 2 3 4

ResNet-8 learns CIFAR-10 at 16 x 16 pixels with the largest 1 % of the gradient, on four hosts of one rank each, all of
them this machine. Of a broken run a host is lost after at least 1,000 of 3,125 steps, and another comes at least 1,000
steps of the three later. A Welch test over the seeds says whether broken runs end worse; then the exit code is 1. Runs
that --out has are not made again. It needs root, to give hosts names.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from suite.studies.significance import compare
from tests.distributed.ends import record
from tests.distributed.launch import ROOT
from tests.elastic.agents import Agents
from tests.elastic.discovered import Discovered
from tests.elastic.hosts import Hosts, ending, lose_and_gain
from wirebench.utils.files import write_atomically

ENGINES: dict[str, Callable[..., Hosts]] = {"torch": Agents, "horovod": Discovered}
WORDS = (
    "configs/tables/convergence_quick.toml", "engine.workers=0", "compressor.name=topk", "compressor.density=0.01",
    "train.elastic=true", "train.mirror=1",
)  # fmt: skip
LEAST_STEPS, AGAIN_STEPS = 1000, 1000
LIMIT_SECONDS = 3600.0
MARGIN = 0.5
"""Points that do not matter, as in the study convergence."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the runs that are not there yet, and say what all show; 1 where broken ones end worse."""
    options = _parse(arguments)
    held = True
    for engine in ENGINES if options.engine == "all" else (options.engine,):
        path = options.out / f"{engine}.json"
        runs = json.loads(path.read_text())["runs"] if path.exists() else []
        known = {(run["seed"], run["broken"]) for run in runs}
        for seed, broken in ((seed, broken) for seed in options.seeds for broken in (False, True)):
            if (seed, broken) not in known:
                runs.append(_run(engine, options.data, seed, broken))
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, json.dumps({"kind": "worlds", "engine": engine, "runs": runs}, indent=1) + "\n")
                print(f"{engine}, seed {seed}, {_side(broken)}: {runs[-1]['top1']:.2f} %", file=sys.stderr, flush=True)
        held &= _told(engine, runs)
    return 0 if held else 1


def _run(engine: str, data: Path, seed: int, broken: bool) -> dict[str, Any]:
    """Train once; what is kept of the record."""
    words = [*WORDS, f"engine.name={engine}", f"data.root={data.resolve()}", f"train.seed={seed}"]
    with tempfile.TemporaryDirectory(prefix="worlds-") as folder:
        hosts = ENGINES[engine](Path(folder), words, {})
        with ending(hosts):
            if broken:
                lose_and_gain(hosts, LEAST_STEPS, AGAIN_STEPS, LIMIT_SECONDS)
            else:
                for host in hosts.names[:-1]:
                    hosts.start(host)
            hosts.finish(LIMIT_SECONDS)
        told = record(hosts.run)
    workers = [(each["workers_before"], each["workers"]) for each in told["worlds"]]
    assert workers == ([(4, 3), (3, 4)] if broken else []), f"another world came or went: {told['worlds']}"
    environment = {key: told["environment"][key] for key in ("utc", "git", "versions", "cpu")}
    kept = {key: told[key] for key in ("worlds", "history", "seconds_total", "steps_done")}
    return {"seed": seed, "broken": broken, "top1": 100 * told["final"]["top1"], **kept, "environment": environment}


def _told(engine: str, runs: Sequence[dict[str, Any]]) -> bool:
    """Say where runs ended, and whether those that were broken are no worse."""
    top1 = {broken: [run["top1"] for run in runs if run["broken"] == broken] for broken in (False, True)}
    for broken, found in top1.items():
        print(f"{engine}, {_side(broken)}: {', '.join(f'{each:.2f}' for each in found)} %")
    verdict = compare(top1[True], top1[False], MARGIN)
    assert verdict is not None
    print(f"{engine}: broken {verdict.difference:+.2f} points, {verdict.words}")
    return verdict.said != "worse"


def _side(broken: bool) -> str:
    return "4 -> 3 -> 4" if broken else "unbroken"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    summary, _, rest = str(__doc__).partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="of CIFAR-10")
    parser.add_argument("--engine", choices=[*ENGINES, "all"], default="all", help="which one to train on (all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the runs of each kind (0 1 2)")
    parser.add_argument("--out", type=Path, default=ROOT / "results/worlds", metavar="FOLDER", help="results/worlds")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        parser.error("needs root, to give hosts names")
    if not options.data.is_dir():
        parser.error(f"--data: {options.data} is no folder")
    return options


if __name__ == "__main__":
    sys.exit(main())
