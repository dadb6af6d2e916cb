"""The table of the harness's overhead, from the files of `wirebench bench overhead --json`, as Markdown."""

import os
import re
from pathlib import Path
from typing import Any

from wirebench.errors import UserError
from wirebench.utils import markdown
from wirebench.utils.files import readable
from wirebench.utils.parsing import json_of

BEGIN, END = "<!-- overhead:begin -->", "<!-- overhead:end -->"
HEAD = ("engine, model", "ours ms", "the engine's own ms", "ratio [p10 - p90]", "others' share of a core")


def table(results: Path, base: Path) -> str:
    """A row for each file of a folder `overhead` below `results`; links are relative to `base`.

    Raises UserError, naming it, for a file that is no such result.
    """
    paths = sorted(results.glob("*/overhead/*.json"))
    return "\n".join(markdown.table(HEAD, [_row(path, base) for path in paths])).rstrip("\n")


def _row(path: Path, base: Path) -> list[str]:
    try:
        result: dict[str, Any] = json_of(readable(path).read_text(encoding="utf-8"))
        ours, peer, ratio = result["ours"]["median"], result["peer"]["median"], result["ratio"]
        spread = f"{ratio['median']:.3f} [{ratio['p10']:.3f} - {ratio['p90']:.3f}]"
        load = max(each["others_cores"] for each in result["load"])
        gpus = result["environment"]["gpus"] if result["backend"] == "nccl" else []
        options = dict(re.findall(r"--(engine|model|ours|precision) (\w+)", result["environment"]["command"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: is not what wirebench bench overhead writes ({error!r})") from error
    link = Path(os.path.relpath(path.resolve(), base.resolve())).as_posix()
    words = [options.get("engine", "?"), options.get("model", "?")]
    words += [options[key] for key in ("ours", "precision") if key in options] + gpus[:1]
    name = f"[{', '.join(words)}]({link})"
    return [name, f"{ours * 1e3:.1f}", f"{peer * 1e3:.1f}", spread, f"{load:.2f}"]
