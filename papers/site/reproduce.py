"""docs/reproduce.md: the papers row by row: on a cluster of one's own, here, and what was reached here."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from papers.claim import Claim
from papers.launched import Parts, Timed, Trained
from papers.runner import ROOT
from papers.site.content import JudgedClaim, Section, command
from papers.study import Study
from wirebench.utils.markdown import table

FILE = Path("docs/reproduce.md")
FIGURE = re.compile(r"fig(\d+)(?:_(\d+))?([a-z]?)\.svg")
PART = re.compile(r"--parts (.+?)(?= --)")
INTRO = """# The papers, row by row

Written by `wirebench study report --docs .`, from the claims
(`papers/*/published.toml`), the configs and the records.

A part of a paper's experiments is one command on a cluster. `--launch` has the words that start its ranks. HOST and
FOLDER stand for yours, and `...` for as many more hosts as there are ranks. `--dry-run` prints every training with its
config, and runs none. Existing runs are not made again, and an interrupted training is continued. Then
`wirebench study NAME report --cluster FOLDER` judges the records and draws the figures. `--rows` takes some of a
part's rows, `--repeats` fewer turns or seeds, `--set` further settings.
"""


def text(sections: Sequence[Section], path: Path) -> str:
    """The whole file, whose links lead from `path`."""
    lines = [INTRO]
    for section in sections:
        parts: Parts = getattr(Study(section.name).runs, "ON_CLUSTER", {})
        if parts:
            lines += [
                f"## {section.title}",
                "",
                *_parts(section, parts, path),
                *_claims(section),
                *_figures(section, path),
            ]
    return "\n".join(lines).rstrip() + "\n"


def _named(claim: Claim) -> str:
    """Which parts a claim's command for a cluster runs; "" without one."""
    found = PART.search(claim.cluster)
    return found[1] if found else ""


def _parts(section: Section, parts: Parts, path: Path) -> list[str]:
    rows = [
        [name, part.about, _runs(part), ", ".join(_configs(part, path)) or "-", f"`{_command(section, name)}`"]
        for name, part in parts.items()
    ]
    return table(("part", "of the paper", "runs", "configs", "on a cluster"), rows)


def _command(section: Section, part: str) -> str:
    """The one of a claim about the part, of this part alone."""
    claims = section.published.claims.values()
    return next(PART.sub(f"--parts {part}", each.cluster) for each in claims if part in _named(each).split())


def _runs(part: Trained | Timed) -> str:
    layouts = f" on each of {len(part.layouts)} layouts" if len(part.layouts) > 1 else ""
    if isinstance(part, Timed):
        return f"{len(part.collectives)} all-reduces of {len(part.sizes)} sizes{layouts}"
    return f"{len(part.rows)} rows, {part.repeats} {'seeds' if part.seeds else 'turns'} each{layouts}"


def _configs(part: Trained | Timed, path: Path) -> Iterator[str]:
    if isinstance(part, Trained):
        for config in dict.fromkeys(config for config, _ in part.rows.values()):
            yield f"[{Path(config).stem}]({os.path.relpath(ROOT / config, path.resolve().parent)})"


def _claims(section: Section) -> list[str]:
    rows = [
        [each.claim.text, each.claim.where, _named(each.claim) or "-", _here(section, each), _reached(each)]
        for each in section.claims
    ]
    return table(("claim", "where", "part", "here", "reached here"), rows)


def _here(section: Section, judged: JudgedClaim) -> str:
    how = command(section, judged)
    return "-" if how == judged.claim.cluster else f"`{how}`"


def _reached(judged: JudgedClaim) -> str:
    if judged.state == "not run here":
        return judged.state
    told = [each for each in judged.findings if each.verdict.state == judged.state]
    several = len(judged.findings)
    return f"{judged.state}: {told[0].here if several == 1 else f'in {len(told)} of {several} settings'}"


def _figures(section: Section, path: Path) -> list[str]:
    """Rows for the figures of the study's own page; one without data here is drawn of a cluster's runs."""
    rows = []
    for page in section.pages:
        for name, figure in page.figures.items():
            if known := FIGURE.fullmatch(name):
                where = f"Fig. {known[1]}{f' and {known[2]}' if known[2] else ''}{f' ({known[3]})' if known[3] else ''}"
                there = f"[{name}]({os.path.relpath(page.folder / name, path.resolve().parent)})"
                rows.append([where, "not drawn: no run here has what it needs" if figure is None else there])
    return table(("figure", "here"), sorted(rows, key=lambda row: row[0]))
