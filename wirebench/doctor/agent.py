"""What `wirebench doctor` starts on each host: it answers requests, a line of JSON each, until its input ends.

{"ask": "facts", "number": 1, "config": "configs/smoke.toml", "interface": null, "variables": {}}
->  MARK {"number": 1, "answer": {"commit": ...}}

The mark is the first argument. It tells an answer from what a login shell prints, before or after.
"""

import json
import socket
import sys
import time
from typing import Any

from wirebench.doctor import wire
from wirebench.errors import UserError


def answer(request: dict[str, Any]) -> Any:
    """The answer to one request. Raises OSError or UserError if the request fails or is unknown."""
    match request["ask"]:
        case "facts":
            from wirebench.doctor import facts  # imports torch, which takes seconds; the clock needs none of it

            return facts.gather(request["config"], request["interface"], request["variables"])
        case "clock":
            return time.time()
        case "resolve":
            known = socket.getaddrinfo(request["host"], None, type=socket.SOCK_STREAM)
            return min(known, key=lambda each: each[0] != socket.AF_INET)[4][0]
        case "listen":
            return wire.listen(request["port"])
        case "free_port":
            with socket.create_server(("", 0)) as server:
                return server.getsockname()[1]
        case "measure":
            return wire.measure(request["address"], request["port"], request["seconds"])._asdict()
        case "sum":
            from wirebench.doctor import group

            place = group.Place(request["address"], request["port"], request["rank"], request["size"])
            return group.measure(request["backend"], place, request["bytes"], request["variables"])._asdict()
        case other:
            raise UserError(f"no such request: {other!r}")


def main() -> int:
    """Answer requests from standard input until it closes."""
    mark = sys.argv[1]
    # What libraries print must not get between the answers.
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        try:
            told: dict[str, Any] = {"answer": answer(request)}
        except (OSError, UserError) as error:
            told = {"error": getattr(error, "strerror", None) or str(error)}
        except Exception as error:
            # A package that is missing or broken there: whoever asks shows it beside the host's name.
            told = {"error": f"{type(error).__name__}: {error}"}
        # On a line of its own, whatever stands before it.
        print(f"\n{mark} {json.dumps({'number': request['number'], **told})}", file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
