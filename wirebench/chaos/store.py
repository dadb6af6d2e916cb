"""The store in which the launchers find each other, on no host of the job: whichever of those is lost, it stays.

python -m wirebench.chaos.store ADDRESS PORT: prints `ready`, then keeps the store until it is killed.
"""

import signal
import sys

import torch.distributed as dist


def main(address: str, port: int) -> None:
    """Keep the store."""
    store = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)
    print("ready", flush=True)
    signal.pause()
    del store


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
