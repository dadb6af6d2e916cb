"""What `test_hvd.py` runs on every rank of a Horovod job; rank 0 prints one line of JSON with what each rank found."""

import json
import sys
import traceback
from typing import Any

import torch

from tests.comm.contract import CHECKS
from tests.exchange.lanes import Plain, check_gradients, images, loss_of, plain_gradients
from wirebench.comm.engine import Engine, start
from wirebench.comm.hvd import HorovodCommunicator
from wirebench.comm.launch import end_process
from wirebench.comm.peers import gather_bytes
from wirebench.config.loader import EngineConfig
from wirebench.errors import UserError
from wirebench.exchange.advance import run
from wirebench.exchange.builtin import builtin_sync


def communicators(engine: Engine) -> dict[str, HorovodCommunicator]:
    """Both ways to run the rounds of plans, in one job."""
    beside = engine.communicators[0].communicator
    assert isinstance(beside, HorovodCommunicator)
    return {"p2p": beside, "alltoall": HorovodCommunicator(engine.module, None, 30.0)}


def outcome(name: str, communicator: HorovodCommunicator) -> str:
    """`good`, or what went wrong."""
    try:
        run([CHECKS[name](communicator)])
    except UserError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return "good"


def bytes_sent(c: HorovodCommunicator) -> dict[str, int]:
    """What this rank says that it sent."""
    left, right = (c.rank - 1) % c.size, (c.rank + 1) % c.size
    found = {}
    for name, call in {
        "round": lambda: c.exchange([(right, torch.ones(4))], [(left, 4)]),
        "sum": lambda: c.all_reduce(torch.ones(6)),
        "broadcast": lambda: c.broadcast([torch.ones(5)], root=1),
        "gather": lambda: c.all_gather(torch.ones(c.rank)),
    }.items():
        handle = call()
        handle.wait()
        found[name] = handle.wire_bytes
    return found


def optimizers_gradients(engine: Engine, parts: int) -> str:
    """Two steps of Horovod's own optimizer, each in `parts` micro-batches: `good`, or what went wrong."""
    model, (rank,) = Plain(), engine.ranks
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sync = builtin_sync(engine, model, optimizer, bucket_cap_mb=0.0, accumulation=parts, unused=())
    try:
        for step in range(2):
            sync.begin(step, 0)
            for number, few in enumerate(images(10 * step + rank, 8).chunk(parts)):
                if number == parts - 1:
                    sync.enable_sync()
                (loss_of(sync.module, few) / parts).backward()
            sync.finish()
            check_gradients(model, plain_gradients([images(10 * step + each, 8) for each in range(engine.size)]))
            with sync.stepping():
                sync.optimizer.step()
    except Exception:
        return traceback.format_exc()
    return "good"


def main() -> None:
    """Run every check with both kinds of rounds."""
    engine = start(EngineConfig(timeout_seconds=30.0, device="cpu"), fusion_mb=0.0)
    found: dict[str, Any] = {"engine": [engine.name, engine.size]}
    for rounds, communicator in communicators(engine).items():
        found[rounds] = {name: outcome(name, communicator) for name in CHECKS}
        found[rounds]["bytes"] = bytes_sent(communicator)
    found["optimizer"] = {str(parts): optimizers_gradients(engine, parts) for parts in (1, 4)}
    everybody = gather_bytes(engine.communicators[0], json.dumps(found).encode())
    if engine.is_first:
        print("FOUND " + json.dumps([json.loads(text) for text in everybody]))
        sys.stdout.flush()
    engine.close()


if __name__ == "__main__":
    main()
    end_process(0)
