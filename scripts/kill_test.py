"""Kill ranks of a run repeatedly, resume it each time, and compare its final state with an undisturbed run.

  python scripts/kill_test.py --kills 20 --engine all
  python scripts/kill_test.py --kills 5 --engine horovod --workers 4 --seed 7

A kill sends SIGKILL to one rank (with the local engine, to the only process) while the run starts, computes, or writes
a checkpoint. The other ranks must end soon, print in one line which rank is lost, and leave no process. The resumed run
must end with the same parameters, momentum, batch statistics, residuals and losses, bit for bit.
"""

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.distributed.ends import assert_same_end, checkpoints
from tests.distributed.launch import CONFIG, Ended, Job, launch, slowly, started

ENGINES = ("local", "torch", "horovod")
STEPS_PER_KILL = 8
MOMENTS = ("computing", "computing", "saving", "saving", "starting")
START_SECONDS = 3.0


class Kill(NamedTuple):
    """One kill: whom, in which moment, and after how many new steps."""

    rank: int
    moment: str
    steps: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Test the engines that the command line names; 0 if every one held."""
    options = _parser().parse_args(arguments)
    engines = ENGINES if options.engine == "all" else (options.engine,)
    failed = []
    for engine in engines:
        with tempfile.TemporaryDirectory(prefix=f"kill-{engine}-") as folder:
            try:
                _test(engine, options.workers, options.kills, random.Random(options.seed), Path(folder))
            except AssertionError as error:
                print(f"{engine}: FAILED: {error}", file=sys.stderr, flush=True)
                failed.append(engine)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    summary, _, rest = str(__doc__).partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="kills for each engine (20)")
    parser.add_argument("--engine", choices=[*ENGINES, "all"], default="all", help="which engine to test (all)")
    parser.add_argument("--workers", type=int, default=3, help="ranks (3)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of ranks and moments (0)")
    return parser


def _test(engine: str, workers: int, kills: int, rng: random.Random, folder: Path) -> None:
    steps = STEPS_PER_KILL * (kills + 1)
    base = [CONFIG, f"train.max_steps={steps}", "train.checkpoint_every_steps=1", f"engine.workers={workers}"]
    ended = launch(engine, workers, [*base, f"output.dir={folder / 'unbroken'}"], folder)
    assert ended.code == 0, ended.said
    broken = [*base, f"output.dir={folder / 'broken'}", "train.resume=auto"]
    for number in range(kills):
        kill = Kill(
            0 if engine == "local" else rng.randrange(workers),
            rng.choice(MOMENTS),
            rng.randrange(1, STEPS_PER_KILL - 1),
        )
        said = _kill_once(engine, workers, kill, broken, folder, rng)
        print(f"{engine}: kill {number + 1} of {kills}: {said}", flush=True)
    ended = launch(engine, workers, broken, folder)
    assert ended.code == 0, ended.said
    assert_same_end(folder / "broken", folder / "unbroken")
    print(f"{engine}: {steps} steps with {kills} kills end, bit for bit, as {steps} steps without", flush=True)


def _kill_once(
    engine: str, workers: int, kill: Kill, arguments: Sequence[object], folder: Path, rng: random.Random
) -> str:
    """Start or resume the run, kill one rank, check how the others end; returns a line about it."""
    run = folder / "broken"
    with started(engine, workers, arguments, folder, slowly(20)) as job:
        if kill.moment == "starting":
            job.until(lambda: kill.rank in _processes(job, engine))
            time.sleep(rng.uniform(0, START_SECONDS))
        else:
            target = _saved(run) + kill.steps
            job.until(lambda: _saved(run) >= target)
            if kill.moment == "saving":
                job.until(lambda: any((run / "checkpoints").glob(".step-*.partial")))
        os.kill(_processes(job, engine)[kill.rank], signal.SIGKILL)
        killed = time.monotonic()
        ended = job.wait()
        seconds = time.monotonic() - killed
        stay = job.left_over()
    assert not stay, f"processes stay: {stay}\n{ended.said}"
    # While a run starts, nobody knows the others yet, and the launcher ends them.
    named = _named(ended, kill.rank)
    if engine != "local" and kill.moment != "starting":
        assert len(named) == workers - 1, f"rank {kill.rank} was killed, but {named} say so\n{ended.said}"
    who = f"rank {kill.rank}" if engine != "local" else "the process"
    told = f", named by ranks {named}" if named else ""
    newest = checkpoints(run)[-1].name if checkpoints(run) else "no checkpoint yet"
    return f"{who} while {kill.moment}{told}, all ended after {seconds:.1f} s; {newest}"


def _processes(job: Job, engine: str) -> Mapping[int, int]:
    """The process of each rank that has started."""
    return {0: job.process.pid} if engine == "local" else job.ranks()


def _named(ended: Ended, rank: int) -> list[int]:
    """The ranks that report, in one line each, that `rank` and no other rank is lost."""
    lines = [line for line in ended.errors if re.search(r": lost rank \d", line)]
    wrong = [line for line in lines if not re.search(rf": lost rank {rank} \(pid \d+ on [^)]*\) (at|before)", line)]
    assert not wrong, f"rank {rank} was killed, but: {wrong}\n{ended.said}"
    return sorted(int(re.findall(r"^error: rank (\d+)", line)[0]) for line in lines)


def _saved(run: Path) -> int:
    """Steps of the newest checkpoint."""
    saved = checkpoints(run)
    return int(saved[-1].name.removeprefix("step-")) if saved else 0


if __name__ == "__main__":
    sys.exit(main())
