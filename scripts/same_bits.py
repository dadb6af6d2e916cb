"""Train one run of every composition whose results a code change must not alter, and save the results bit for bit.

  bash scripts/same_bits.sh FIRST LAST               two commits, all engines: the whole comparison
  python scripts/same_bits.py run local OUT.json     in a checkout, with PYTHONPATH naming it: the runs of one engine
  python scripts/same_bits.py compare A.json B.json  what differs; exit code 1 if anything does

The compositions are the smoke run, each compressor with `fused` and `dear`, and each scheduler without compression.
A result is the exit code, the losses of all steps and a digest of the parameters. The script depends only on train.py
and the names of plugins, so it runs on any commit that has them.
"""

import hashlib
import importlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONFIG = """
[model]
name = "resnet_cifar"
depth = 20
[data]
name = "digits"
batch_size = 4
[optimizer]
lr = 0.1
momentum = 0.9
weight_decay = 1e-4
[train]
max_steps = 4
warmup_steps = 0
eval_every = 0
[output]
tensorboard = false
[engine]
timeout_seconds = 120
"""
SEVERAL = {"fused": ("bucket_cap_mb=0.25", "first_bucket_mb=0.25"), "dear": ("bucket_cap_mb=0.25",)}
"""Options that make several buckets, so that their order and their edges count."""
ONE = {"fused": ("first_bucket_mb=25",), "dear": ()}
"""One bucket: for what needs the model whole."""
REFUSED = 2
WORLD, HOST, FIRST_PORT = 2, "127.0.0.1", 29600


def _first_of(*names: str) -> Any:
    """The first of these modules that the commit has: they have had other names."""
    return importlib.import_module(next(filter(_is_there, names)))


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def compositions() -> Iterator[tuple[str, list[str]]]:
    """(name, overrides) of every run."""
    compressors = _first_of("wirebench.compressors", "compressors")
    schedulers = _first_of("wirebench.schedulers", "schedulers")
    optimizer_for = _first_of("wirebench.compose.resolve", "suite.compose.resolve").optimizer_for

    yield "smoke", ["configs/smoke.toml", "train.max_steps=4", "train.eval_every=0"]
    for name in compressors.available():
        for scheduler in ("fused", "dear"):
            for cut, options in (("several buckets", SEVERAL), ("one bucket", ONE)):
                cutting = [f"scheduler.{option}" for option in options[scheduler]]
                chosen = [f"compressor.name={name}", *optimizer_for(name), f"scheduler.name={scheduler}"]
                yield f"{name} {scheduler}, {cut}", [*chosen, *cutting]
    for scheduler in schedulers.available():
        yield f"none {scheduler}", ["compressor.name=none", f"scheduler.name={scheduler}"]


def run(engine: str, out: Path) -> int:
    """Make the runs of one engine and write `out`.

    Each run has its own processes, so no state passes between runs. They are forked off this process, which has
    imported everything.
    """
    if engine == "horovod":
        import horovod.torch  # noqa: F401
    train = _first_of("wirebench.compose.run", "train")

    results: dict[str, Any] = {}
    for number, (name, overrides) in enumerate(compositions()):
        with tempfile.TemporaryDirectory(prefix="same-bits-") as folder:
            (Path(folder) / "config.toml").write_text(CONFIG)
            words = overrides if overrides[0].endswith(".toml") else [f"{folder}/config.toml", *overrides]
            words = [*words, *(["engine.workers=2"] if engine == "local" else []), f"output.dir={folder}/run"]
            code = _forked(train, words, Path(folder), engine, FIRST_PORT + number)
            digests = sorted(file.read_text() for file in Path(folder).glob("digest-*"))
            results[name] = {"code": code, "parameters": digests, "losses": _losses(Path(folder) / "run")}
        print(f"{engine}: {name}: {results[name]['code']} {digests}", file=sys.stderr, flush=True)
    out.write_text(json.dumps(results, indent=1))
    sys.stdout.flush()
    os._exit(0)


def _forked(train: Any, words: list[str], folder: Path, engine: str, port: int) -> int:
    """Train in new processes, as the engine's launcher would start them; the largest of their exit codes."""
    server = None
    if engine == "horovod":
        server, port = _rendezvous()
    children = []
    for rank in range(1 if engine == "local" else WORLD):
        child = os.fork()
        if child == 0:
            os.environ.update(_told(engine, rank, port))
            os._exit(_train(train, words, folder))
        children.append(child)
    code = max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    if server is not None:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
    return code


def _told(engine: str, rank: int, port: int) -> dict[str, str]:
    """What torchrun or horovodrun tells a rank; nothing of one that is alone."""
    if engine == "local":
        return {}
    if engine == "torch":
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORLD, "LOCAL_WORLD_SIZE": WORLD}
        return {key: str(value) for key, value in places.items()} | {"MASTER_ADDR": HOST, "MASTER_PORT": str(port)}
    places = {"RANK": rank, "SIZE": WORLD, "LOCAL_RANK": rank, "LOCAL_SIZE": WORLD, "CROSS_RANK": 0, "CROSS_SIZE": 1}
    words = {"HOSTNAME": HOST, "GLOO_RENDEZVOUS_ADDR": HOST, "GLOO_RENDEZVOUS_PORT": port, "GLOO_IFACE": "lo"}
    gloo = {"CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo", "CACHE_CAPACITY": 0, "GLOO_TIMEOUT_SECONDS": 120}
    return {f"HOROVOD_{key}": str(value) for key, value in {**places, **words, **gloo}.items()}


def _rendezvous() -> tuple[int, int]:
    """Horovod's rendezvous server in a process of its own, so that this one stays without threads: its pid and port."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        server = RendezvousServer()
        port = server.start()
        server.init(get_host_assignments(parse_hosts(f"{HOST}:{WORLD}"), WORLD))
        os.write(writing, str(port).encode())
        signal.pause()
    os.close(writing)
    port = int(os.read(reading, 16))
    os.close(reading)
    return child, port


def _train(train: Any, words: list[str], folder: Path) -> int:
    """Train, and leave a digest of this process's parameters in the folder; the exit code."""
    conduct, end_process = train.conduct, train.end_process

    def watched(trained: Any) -> int:
        code: int = conduct(trained)
        (folder / f"digest-{trained.workers[0].rank}").write_text(_digest(trained))
        return code

    def stay(code: int, tidy: bool = True) -> None:
        raise SystemExit(code)

    train.conduct, train.end_process = watched, stay
    try:
        return int(train.main(words))
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        train.conduct, train.end_process = conduct, end_process


def _digest(trained: Any) -> str:
    digest = hashlib.sha256()
    for worker in trained.workers:
        for parameter in worker.model.parameters():
            digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _losses(folder: Path) -> list[Any]:
    file = folder / "steps.jsonl"
    return [json.loads(line)["loss"] for line in file.read_text().splitlines()] if file.exists() else []


def compare(first: Path, second: Path) -> int:
    """Print what differs between two files of `run`; 1 if anything does, or failed: a refusal (2) may be the same.

    A scheduler that has another name now is the same composition.
    """
    a, b = (json.loads(path.read_text()) for path in (first, second))
    a = {name if name in b else _today(name): entry for name, entry in a.items()}
    for name in sorted({*a, *b}):
        if a.get(name) != b.get(name):
            print(f"{name}: {a.get(name)} is now {b.get(name)}")
    failed = [name for name, entry in b.items() if entry["code"] not in (0, REFUSED)]
    for name in failed:
        print(f"{name}: failed with {b[name]['code']}")
    different = sum(a.get(name) != b.get(name) for name in {*a, *b})
    ran = sum(entry["code"] == 0 for entry in b.values())
    print(f"{first.stem}: {len(b)} compositions, {ran} trained, {different} differ")
    return 1 if different or failed else 0


def _today(name: str) -> str:
    """A composition's name with the name that its scheduler has now."""
    from wirebench.schedulers import PLUGINS

    start, _, scheduler = name.rpartition(" ")
    return f"{start} {PLUGINS.aliases.get(scheduler, scheduler)}"


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(compare(Path(words[1]), Path(words[2])) if words[0] == "compare" else run(words[1], Path(words[2])))
