"""Time all-reduce algorithms side by side, with nccl-tests' habits, beside the cost model's prediction.

  wirebench cluster run --layout 2+3 --link 200mbit -- wirebench bench collectives --json FILE
  torchrun --nproc-per-node 4 -m wirebench bench collectives --collectives native ring tree --sizes 4 64k 4m
  torchrun --nproc-per-node 4 -m wirebench bench collectives --collectives ring --nccl-json ring.json
  horovodrun -np 4 wirebench bench collectives
  wirebench cluster run --hosts 4 --link 1gbit -- wirebench bench collectives --collectives ring --wires bf16 int8

Every rank runs it. All collectives take turns at each size, so what slows the machine down slows all of them. Each is
checked against the exact sum first. Sizes are bytes of float32; 60kf means 60,000 floats. --wires measures each
collective in each of these wire formats (docs/sums.md), coding included. A sum in a wire format has to be the one that
the same plans give on virtual ranks in one process. --nccl-json writes what nccl-tests' all_reduce_perf -J does
(docs/formats.md). Files are written after each size, so that Ctrl-C loses one.
"""

import argparse
import functools
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from wirebench import collectives
from wirebench.bench.all_reduce_benchmark import AllReduceBenchmark, StandIn, planned_bytes, predicted_seconds
from wirebench.collectives.native import is_engines_own
from wirebench.collectives.plan import Collective
from wirebench.collectives.ring import Ring
from wirebench.collectives.wire import NO_PLAN
from wirebench.comm.engine import Engine, start
from wirebench.comm.launch import launched
from wirebench.compressors.bits.coded import code_of
from wirebench.config.loader import EngineConfig
from wirebench.errors import UserError
from wirebench.formats import nccl_tests
from wirebench.gradient.flat import FLOAT_BYTES
from wirebench.record import collective_results
from wirebench.record.collective_results import AllReduceResult
from wirebench.record.rules import TURNS
from wirebench.telemetry.environment import capture
from wirebench.telemetry.machines import LoadMeter, hosts
from wirebench.telemetry.nic import InterfaceCounter, find_interface
from wirebench.topology import topology_file
from wirebench.topology.tree import Topology
from wirebench.utils.cli import check_outputs, naming, parser_of
from wirebench.utils.console import columns, console

SIZES = "4 1k 16k 60kf 1m 4m 4000kf 14700kf"
UNCODED = "none"
"""Among wire formats: fp32 as it is."""
Trials = dict[tuple[str, str], AllReduceBenchmark]
"""By collective and wire format, \"\" without one."""
WITHOUT_FORMATS = "the engine's own all-reduce takes no wire format"
KEYS = {"collective.wire": "--wires", "collective.name": "--collectives"}
"""How to set here what refusals of wire formats name."""
UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "kf": 4_000, "mf": 4_000_000, "ki": 1024, "mi": 1024**2}


def main(arguments: Sequence[str]) -> int:
    """Measure; rank 0 prints and writes. 1 where a sum was wrong."""
    options = parse(arguments)
    sizes = [parse_size(text) for text in options.sizes]
    built, left_out = chosen(options.collectives, options.wires)
    if launched().alone:
        raise UserError("start it with wirebench cluster run, torchrun or horovodrun; see --help")
    if launched().rank == 0:
        if left_out:
            print(f"wirebench bench collectives: {WITHOUT_FORMATS}; left out: {', '.join(left_out)}", file=sys.stderr)
        check_outputs(**{"json": options.json, "nccl-json": options.nccl_json})
    engine = start(EngineConfig(device=options.device, timeout_seconds=options.timeout), fusion_mb=0.0)
    if engine.size == 1:
        raise UserError("needs at least 2 ranks")
    topology = topology_file.of_job(options.topology or "", [peer.host for peer in engine.peers], "--topology")
    nic = InterfaceCounter(find_interface(engine.ranks_on_this_host == engine.size))
    trials = {key: AllReduceBenchmark(engine, collective, topology, nic) for key, collective in built.items()}
    ring = functools.partial(Ring().plan, topology)
    about, load = header(options, engine, topology), LoadMeter()
    results: list[AllReduceResult] = []
    for items in sizes:
        with naming(KEYS):
            results += measure(options, engine, trials, items, ring)
        if engine.is_first and not options.quiet:
            print(f"  {size_text(items * FLOAT_BYTES)} done", file=sys.stderr, flush=True)
        about["load"] = load.loads(engine)
        if engine.is_first:
            write(options, about, results)  # at each size: one that is stopped keeps the sizes before
    if engine.is_first:
        show(results, topology)
    engine.close()
    wrong = [f"{cell.label} of {size_text(cell.num_bytes)}" for cell in results if not cell.right]
    if wrong and engine.is_first:
        print(f"wirebench bench collectives: wrong sums: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def chosen(names: Sequence[str], wires: Sequence[str]) -> tuple[dict[tuple[str, str], Collective], list[str]]:
    """Each collective in each format; and what is left out, since the engine's own collective takes no format.

    Raises UserError for an unknown one, one named twice, and where nothing is left.
    """
    for option, given in (("--collectives", names), ("--wires", wires)):
        if twice := sorted({each for each in given if given.count(each) > 1}):
            raise UserError(f"{option}: named twice: {', '.join(twice)}")
    codes = {wire: None if wire == UNCODED else code_of(wire, "--wires") for wire in wires}
    built, left_out = {}, []
    for name in names:
        for wire, code in codes.items():
            with naming(KEYS):
                collective = collectives.build(name)
            if code is not None and is_engines_own(collective):
                left_out.append(f"{name} in {wire}")
            else:
                built[name, "" if code is None else wire] = collectives.formatted(collective, code)
    if not built:
        with naming(KEYS):
            raise UserError(NO_PLAN)
    return built, left_out


def measure(
    options: argparse.Namespace, engine: Engine, trials: Trials, items: int, ring: StandIn
) -> list[AllReduceResult]:
    """All collectives at one size, taking turns."""
    tensor = torch.zeros(items, device=engine.device)
    outcomes, calls = {}, {}
    for name, trial in trials.items():
        outcomes[name] = trial.check(tensor)
        tensor.zero_()
        trial.repeat(tensor, 1)
        calls[name] = trial.loop_length(trial.take().seconds[0])
    round_seconds = sum(outcome.seconds * calls[name] for name, outcome in outcomes.items())
    repeats = min(options.repeats, max(TURNS, int(options.seconds / round_seconds)))
    for number in range(repeats):
        order = list(trials) if number % 2 == 0 else list(trials)[::-1]
        for name in order:
            trials[name].repeat(tensor, calls[name])
    return [cell_of(engine, name, trial, items, outcomes[name], ring) for name, trial in trials.items()]


def cell_of(
    engine: Engine, key: tuple[str, str], trial: AllReduceBenchmark, items: int, outcome: Any, ring: StandIn
) -> AllReduceResult:
    """What a collective's turns at one size gave; `key`: its name, and its wire format."""
    name, wire = key
    repeats, plans = trial.take(), trial.segments(items).plans
    planned = planned_bytes(trial, items, ring)
    machines = None
    if repeats.interface is not None:
        machines = tuple((*seen, *plan) for seen, plan in zip(repeats.interface, planned, strict=True))
    return AllReduceResult(
        collective=name,
        plan=plans[0].name if plans else "native",
        items=items,
        item_bytes=FLOAT_BYTES,
        ranks=engine.size,
        layout=trial.topology.layout,
        engine=engine.name,
        backend=engine.backend,
        segments=len(plans),
        rounds=plans[0].rounds if plans else 0,
        seconds=tuple(repeats.seconds),
        max_error=outcome.max_error,
        identical=outcome.identical,
        predicted_seconds=predicted_seconds(trial, items),
        machines=machines,
        wire=wire,
        reproduced=outcome.reproduced,
    )


def header(options: argparse.Namespace, engine: Engine, topology: Topology) -> dict[str, Any]:
    """Where and how it is measured; every rank calls it."""
    return {
        "layout": topology.layout,
        "topology": options.topology,
        "engine": engine.name,
        "backend": engine.backend,
        "environment": capture(engine.device) | {"hosts": hosts(engine)},
        "ranks": [{"rank": peer.rank, "host": peer.host, "pid": peer.pid} for peer in engine.peers],
    }


def write(options: argparse.Namespace, about: dict[str, Any], results: Sequence[AllReduceResult]) -> None:
    """The files that were asked for."""
    if options.json:
        collective_results.save(options.json, about, results)
    if options.nccl_json:
        nccl_tests.save(
            options.nccl_json, nccl_tests.document(about, results, options.repeats, ended=datetime.now(UTC))
        )


def show(results: Sequence[AllReduceResult], topology: Topology) -> None:
    """The table."""
    heads = ("bytes", "collective", "ms median", "[p10 - p90]", "algbw MB/s", "busbw MB/s", "error", "predicted ms")
    shown = columns((*heads, "wire/plan"), left=("collective",), title=f"all-reduce on {topology.layout}")
    for cell in results:
        low, high = cell.spread
        shown.add_row(
            size_text(cell.num_bytes),
            cell.label if cell.plan in (cell.label, "native") else f"{cell.label} ({cell.plan})",
            f"{cell.median * 1e3:.3f}",
            f"[{low * 1e3:.3f} - {high * 1e3:.3f}]",
            f"{cell.algbw / 1e6:.1f}",
            f"{cell.busbw / 1e6:.1f}",
            f"{cell.max_error:.0e}" + ("" if cell.identical else " RANKS DIFFER") + ("" if cell.right else " WRONG"),
            prediction_text(cell),
            wire_text(cell),
        )
    console(140, markup=False).print(shown)


def prediction_text(cell: AllReduceResult) -> str:
    """Predicted milliseconds and their error."""
    if cell.predicted_seconds is None or cell.prediction_error is None:
        return "-"
    return f"{cell.predicted_seconds * 1e3:.3f} ({cell.prediction_error:+.0%})"


def wire_text(cell: AllReduceResult) -> str:
    """Bytes that the interfaces sent over bytes that the plan sends, all machines together."""
    if not cell.machines or not sum(machine[2] for machine in cell.machines):
        return "-"
    return f"{sum(m[0] for m in cell.machines) / sum(m[2] for m in cell.machines):.3f}"


def parse_size(text: str) -> int:
    """Floats in a size such as 4, 16k, 1mi, 60kf."""
    number = text.lower().rstrip("kmif")
    unit = text.lower()[len(number) :]
    if not number.isdecimal() or unit not in UNITS:
        raise UserError(f"--sizes: cannot read {text!r}; bytes read 4, 16k, 4m, 1mi and floats 60kf, 120mf")
    num_bytes = int(number) * UNITS[unit]
    if num_bytes < FLOAT_BYTES or num_bytes % FLOAT_BYTES:
        raise UserError(f"--sizes: {text!r} is no whole number of float32, at least one")
    return num_bytes // FLOAT_BYTES


def size_text(num_bytes: int) -> str:
    """A size for people: decimal units."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.4g} {unit}"
    return f"{num_bytes} B"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = parser_of("bench collectives", __doc__)
    known = collectives.available()
    planned = [name for name in known if name != "native"]
    parser.add_argument(
        "--collectives", nargs="+", help=f"default: all ({' '.join(known)}); with wire formats all but native"
    )
    parser.add_argument(
        "--wires",
        nargs="+",
        default=[UNCODED],
        metavar="FORMAT",
        help="wire formats; none, the default, is fp32 as it is",
    )
    parser.add_argument("--sizes", nargs="+", default=SIZES.split(), help=f"default: {SIZES}")
    parser.add_argument("--topology", default="", help="file with link speeds, for the prediction (wirebench fit)")
    parser.add_argument("--repeats", type=int, default=20, help="turns of each collective at most")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for a size, as far as the least turns allow")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which a rank counts as lost")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the cells, one JSON line each")
    parser.add_argument("--nccl-json", type=Path, metavar="FILE", help="write them as nccl-tests' -J does")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    options = parser.parse_args(arguments)
    options.collectives = options.collectives or (known if set(options.wires) == {UNCODED} else planned)
    if options.repeats < 1 or options.seconds <= 0:
        parser.error("--repeats and --seconds are positive")
    return options
