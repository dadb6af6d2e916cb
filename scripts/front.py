r"""Make the numbers that README.md and docs/playbook.md show, into results/front.

  python scripts/front.py loops       DDP's loop and ours on two emulated hosts at 1 Gbit/s; root, quiet machine
  python scripts/front.py diagnose    a run on a full link, its diagnosis, and what --try measures; root, quiet machine
  python scripts/front.py advice      what to switch on, by model and link: simulated
  python scripts/front.py picture     the speed-up of four methods on ResNet-50 against the rate of the links: simulated
  python scripts/front.py playbook    print the tables of docs/playbook.md from advice.json

tests/test_front.py compares the numbers of both pages with these files.
"""

import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from wirebench.cli.planning.demo import SpeedUps, draw
from wirebench.figures.files import save
from wirebench.planner.candidate import Speedup
from wirebench.schedulers import PLUGINS as SCHEDULERS
from wirebench.telemetry import environment
from wirebench.utils.json_lines import json_text, rounded

ROOT = Path(__file__).resolve().parents[1]
FRONT = ROOT / "results" / "front"
REPEATS, EPOCHS = 5, 4
LOOPS = ("plain_ddp", "synchronised")
CLUSTER = ("wirebench", "cluster", "run", "--hosts", "2", "--link")
MODELS = {
    "small CNN (ResNet-20)": "--model resnet_cifar --option depth=20 --image-size 32 --classes 10 --batch 32",
    "VGG-16": "--model vgg16 --batch 32",
    "ResNet-50": "--model resnet50 --batch 32",
    "GPT of 100M": "--model gpt --option depth=14 --option width=768 --option heads=12 --option context=512 "
    "--data python_sources:length=512 --batch 8",
}
PICTURED = ("bf16", "quantised_sum", "dgc", "powersgd")
NETWORKS = {0.1: "1gbe", 0.3: "1gbe", 1.0: "1gbe", 3.0: "10gbe", 10.0: "10gbe", 30.0: "100gbe", 100.0: "100gbe"}
"""The networks of the picture, by Gbit/s; a message takes the network's start-up time."""
HEADS = ("link per worker", "switch on", "speed-up", "accuracy or loss", "bytes a step", "faster, at a cost")
SHOWN = (
    "nothing", "compressor", "scheduler", "collective", "density", "speedup", "speedup_range", "efficiency",
    "bytes_per_step", "accuracy",
)  # fmt: skip
"""Keys of an answer that the pages show, or that say what is composed; `command` prints the others."""
WORKERS = 8
"""Number of workers in every row."""
GPU = "--gpu rtx4090 --precision bf16"
LINKS = {
    "100 Mbit/s": "--network 1gbe --gbit 0.1 --workers 8",
    "1 Gbit/s": "--network 1gbe --workers 8",
    "10 Gbit/s": "--network 10gbe --workers 8",
    "100 Gbit/s": "--network 100gbe --workers 8",
    "one box, PCIe": "--per-machine 8 --workers 8",
}


def main(words: Sequence[str]) -> int:
    """Make one of the files, or print the tables."""
    if len(words) != 1 or words[0] not in PARTS:
        print(__doc__, file=sys.stderr)
        return 2
    FRONT.mkdir(parents=True, exist_ok=True)
    PARTS[words[0]]()
    return 0


def loops() -> None:
    """Milliseconds of a step, of the median epoch after the first, of each repeat."""
    steps: dict[str, list[float]] = {name: [] for name in LOOPS}
    for _ in range(REPEATS):
        for name in LOOPS:
            said = run([*CLUSTER, "1gbit", "--", "python", f"examples/{name}.py", f"--epochs={EPOCHS}"])
            found = sorted(float(each) for each in re.findall(r"([\d.]+) ms a step", said)[1:])
            steps[name].append(found[len(found) // 2])
            print(f"{name}: {steps[name][-1]:g} ms a step", flush=True)
    command = shlex.join([*CLUSTER, "1gbit", "--", "python", "examples/NAME.py", f"--epochs={EPOCHS}"])
    _write("loops.json", {"command": command, "step_ms": steps})


def diagnose() -> None:
    """Make a run, diagnose it with --try, and save the printed lines."""
    mine = "results/runs/mine"
    with tempfile.TemporaryDirectory() as folder:
        words = [*CLUSTER, "100mbit", "--", "wirebench", "train", "smoke", "train.max_steps=60"]
        run([*words, f"output.dir={folder}/run"])
        said = run(["wirebench", "diagnose", "--try", f"{folder}/run"])
        said = said.replace(f"{folder}/run", mine).replace(f"{sys.executable} -m wirebench", "wirebench")
    commands = [shlex.join([*words, f"output.dir={mine}"]), f"wirebench diagnose --try {mine}"]
    _write("diagnose.json", {"commands": commands, "lines": said.splitlines()})


def advice() -> None:
    """The three answers for every model and link."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model, of_model in MODELS.items():
            for link, of_link in LINKS.items():
                command = f"wirebench advise {of_model} {GPU} {of_link}"
                run([*shlex.split(command), "--json", f"{folder}/it.json"])
                answer = _shown(json.loads(Path(folder, "it.json").read_text())["answer"])
                rows.append({"model": model, "link": link, "command": command, "answer": answer})
                print(f"{model}, {link}", flush=True)
    _write("advice.json", {"rows": rows})


def _shown(answer: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {key: each for key, each in of.items() if key in SHOWN} for name, of in answer.items()}


def picture() -> None:
    """The figure, and its numbers: each compressor's best composition over the best one of dense training."""
    found: SpeedUps = {"dense": [Speedup(1.0, 1.0, 1.0) for _ in NETWORKS], **{name: [] for name in PICTURED}}
    command = f"wirebench advise {MODELS['ResNet-50']} {GPU} --workers 8 --compressors {' '.join(PICTURED)}"
    with tempfile.TemporaryDirectory() as folder:
        for gbit, network in NETWORKS.items():
            own = ["--network", network, "--gbit", f"{gbit:g}", "--json", f"{folder}/it.json"]
            run([*shlex.split(command), *own])
            rows = json.loads(Path(folder, "it.json").read_text())["rows"]
            best = {each["compressor"]: each for each in reversed(rows) if not each["scheduler"].startswith("outer")}
            dense = best["none"]["speedup"]
            for name in PICTURED:
                numbers = (best[name]["speedup"], *best[name]["speedup_range"])
                found[name].append(Speedup(*(each / dense for each in numbers)))
    note = "ResNet-50, 8 workers with an RTX 4090 each, simulated; each at its best schedule. Bands: how far past "
    save(draw(found, list(NETWORKS), f"{note}predictions were off."), FRONT / "speedups.svg")
    about = {"command": f"{command} --network NAME --gbit RATE", "networks": NETWORKS, "speed_ups": found}
    _write("picture.json", about)


def switched_on(answer: dict[str, Any]) -> dict[str, Any] | None:
    """The faster of what is free and what is nearly free; None: nothing."""
    cheap = [each for name in ("free", "nearly_free") if "nothing" not in (each := answer[name])]
    return cheap[-1] if cheap else None


def tables(rows: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """The Markdown lines of each model's table: for each link the method, its gain and loss, and a faster one."""
    found: dict[str, list[str]] = {}
    for row in rows:
        first = found.setdefault(row["model"], [f"| {' | '.join(HEADS)} |", f"| {' | '.join(['---'] * len(HEADS))} |"])
        on, more = switched_on(row["answer"]), row["answer"]["fastest_at_a_cost"]
        cells = ["nothing", "1", "-", "-"] if on is None else [_composed(on), _gain(on), _lost(on), _size(on)]
        cost = "-" if "nothing" in more else f"{_composed(more)}: {_gain(more)}, {_lost(more)}"
        first.append(f"| {row['link']} | {' | '.join(cells)} | {cost} |")
    return found


def playbook() -> None:
    """The tables, as docs/playbook.md has them."""
    for model, lines in tables(json.loads((FRONT / "advice.json").read_text(encoding="utf-8"))["rows"]).items():
        print(f"\n## {model}\n", *lines, sep="\n")


def _composed(each: dict[str, Any]) -> str:
    density = "" if each["density"] is None else f" {100 * each['density']:g} %"
    name = "dense" if each["compressor"] == "none" else f"`{each['compressor']}`{density}"
    # The file may have a schedule's earlier name.
    return f"{name}, `{SCHEDULERS.aliases.get(each['scheduler'], each['scheduler'])}`"


def _gain(each: dict[str, Any]) -> str:
    low, high = each["speedup_range"]
    alone = ", slower than one worker alone" * (WORKERS * each["efficiency"] < 1)
    return f"{_number(each['speedup'])}x [{_number(low)} to {_number(high)}]{alone}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _lost(each: dict[str, Any]) -> str:
    known = each["accuracy"]
    if known is None or (each["compressor"] == "none" and not each["scheduler"].startswith("outer")):
        return "exact"
    if "top1_points" in known:
        return f"{known['top1_points']:+.1f} points"
    return f"{known['loss_ratio']:.3f}x loss at {known['of']['words'].rpartition(', ')[2]}"


def _size(each: dict[str, Any]) -> str:
    sent = each["bytes_per_step"]["wire"]
    return f"{sent / 1e6:.3g} MB" if sent >= 1e6 else f"{sent / 1e3:.3g} kB"


def run(words: Sequence[str]) -> str:
    """What a command prints; its error ends this program."""
    own = [sys.executable, "-m", "wirebench", *words[1:]] if words[0] == "wirebench" else list(words)
    done = subprocess.run(own, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{shlex.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def _write(name: str, content: dict[str, Any]) -> None:
    about = environment.capture(torch.device("cpu"))
    told = {key: about[key] for key in ("utc", "git", "cpu", "versions")}
    whole = rounded({**content, "environment": told})
    lines = [f"{json_text(key)}:{_lines(each)}" for key, each in whole.items()]
    (FRONT / name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(FRONT / name)


def _lines(value: Any) -> str:
    """JSON with a line for each value of a list."""
    return "[\n" + ",\n".join(map(json_text, value)) + "\n]" if isinstance(value, list) else json_text(value)


PARTS: dict[str, Callable[[], None]] = {
    "loops": loops,
    "diagnose": diagnose,
    "advice": advice,
    "picture": picture,
    "playbook": playbook,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
