"""How much of a link TCP gets: all ranks but 0 send to rank 0 at once, and rank 0 says how fast it came in.

wirebench cluster run --hosts 2 --link 1gbit -- python tests/cluster/streams.py 5    one stream
wirebench cluster run --hosts 4 --link 1gbit -- python tests/cluster/streams.py 5    three into one

Payload only, in Mbit/s, without each stream's first half second. Each sender says how many segments its host sent
again.
"""

import os
import socket
import sys
import threading
import time
from pathlib import Path

WARM_UP_SECONDS = 0.5


def receive(connection: socket.socket, results: list[tuple[int, float, float]]) -> None:
    """Append (bytes, first, last second) of what came after the warm-up."""
    buffer, count, begin, last = bytearray(1 << 20), 0, 0.0, 0.0
    started = time.monotonic()
    while size := connection.recv_into(buffer):
        last = time.monotonic()
        if last - started < WARM_UP_SECONDS or not begin:
            begin = last
        else:
            count += size
    results.append((count, begin, last))


def serve(senders: int, port: int) -> None:
    results: list[tuple[int, float, float]] = []
    with socket.create_server(("", port), backlog=senders) as server:
        threads = [threading.Thread(target=receive, args=(server.accept()[0], results)) for _ in range(senders)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seconds = max(last for _, _, last in results) - min(begin for _, begin, _ in results)
    each = ", ".join(f"{count * 8 / (last - begin) / 1e6:.1f}" for count, begin, last in sorted(results))
    print(f"{sum(count for count, _, _ in results) * 8 / seconds / 1e6:.2f} Mbit/s of {each}", flush=True)


def send(address: str, port: int, seconds: float) -> None:
    block = bytes(1 << 18)
    while True:
        try:
            connection = socket.create_connection((address, port))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    end = time.monotonic() + seconds
    with connection:
        while time.monotonic() < end:
            connection.sendall(block)
    print(f"{sent_again()} segments sent again", flush=True)


def sent_again() -> int:
    """TCP segments that this host's namespace has sent a second time: those that a queue dropped."""
    lines = Path("/proc/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


if __name__ == "__main__":
    port = int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] == "0":
        serve(int(os.environ["WORLD_SIZE"]) - 1, port)
    else:
        send(os.environ["MASTER_ADDR"], port, float(sys.argv[1]))
