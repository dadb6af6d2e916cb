"""Train with a host that is lost and one that comes, and without, and compare where both end: accuracy over seeds.

python scripts/worlds.py --data FOLDER                     both engines, three seeds: about 30 minutes on two cores
python scripts/worlds.py --data FOLDER --engine horovod --seeds 0 1 2 3 4

ResNet-8 learns CIFAR-10 at 16 x 16 pixels with the largest 1 % of the gradient, on four hosts of one rank each, all of
them this machine. Of a broken run a host is lost after at least 1,000 of 3,120 steps, and another comes at least 1,000
steps of the three later. A Welch test over the seeds says whether broken runs end worse; then the exit code is 1. Runs
that --out has are not made again. It needs root, to give hosts names.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from papers.failures import worlds
from tests.distributed.ends import record
from tests.elastic.agents import Agents
from tests.elastic.discovered import Discovered
from tests.elastic.hosts import Hosts, ending, lose_and_gain
from wirebench.record import recorded

ENGINES: dict[str, Callable[..., Hosts]] = {"torch": Agents, "horovod": Discovered}
WORDS = (
    "configs/tables/convergence_quick.toml", "engine.workers=0", "compressor.name=topk", "compressor.density=0.01",
    "train.elastic=true", "train.mirror=1",
)  # fmt: skip
SHARED = {"WIREBENCH_SHARED_BY": "4"}
"""Ranks that share the machine's cores, which its hosts' names hide: each would take all of them for its threads."""
LEAST_STEPS, AGAIN_STEPS = 1000, 1000
LIMIT_SECONDS = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the runs that are not there yet, and say what all show; 1 where broken ones end worse."""
    options = _parse(arguments)
    held = True
    for engine in ENGINES if options.engine == "all" else (options.engine,):
        for seed, broken in ((seed, broken) for seed in options.seeds for broken in (False, True)):
            kept = options.out / f"{worlds.label(engine, broken)}-{seed}"
            if options.again or recorded.at(kept) is None:
                _run(engine, options.data, seed, broken, kept)
                top1 = 100 * recorded.read(kept)["final"]["top1"]
                print(f"{worlds.label(engine, broken)}, seed {seed}: {top1:.2f} %", file=sys.stderr, flush=True)
        compared = worlds.load(options.out, engine)
        print("\n".join(compared.lines()))
        held &= compared.said != "worse"
    return 0 if held else 1


def _run(engine: str, data: Path, seed: int, broken: bool, kept: Path) -> None:
    """Train once, as the run of the path `kept`."""
    words = [*WORDS, f"engine.name={engine}", f"data.root={data.resolve()}", f"train.seed={seed}"]
    with tempfile.TemporaryDirectory(prefix="worlds-") as folder:
        hosts = ENGINES[engine](Path(folder), words, SHARED)
        with ending(hosts):
            if broken:
                lose_and_gain(hosts, LEAST_STEPS, AGAIN_STEPS, LIMIT_SECONDS)
            else:
                for host in hosts.names[:-1]:
                    hosts.start(host)
            hosts.finish(LIMIT_SECONDS)
        changes = [(each["workers_before"], each["workers"]) for each in record(hosts.run)["worlds"]]
        assert changes == ([(4, 3), (3, 4)] if broken else []), f"another world came or went: {changes}"
        recorded.append(kept.parent, kept.name, {}, hosts.run)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    summary, _, rest = str(__doc__).partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="of CIFAR-10")
    parser.add_argument("--engine", choices=[*ENGINES, "all"], default="all", help="which one to train on (all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the runs of each kind (0 1 2)")
    parser.add_argument("--out", type=Path, default=worlds.FOLDER, metavar="FOLDER", help="results/failures/worlds")
    parser.add_argument("--again", action="store_true", help="also the runs that are there")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        parser.error("needs root, to give hosts names")
    if not options.data.is_dir():
        parser.error(f"--data: {options.data} is no folder")
    return options


if __name__ == "__main__":
    sys.exit(main())
