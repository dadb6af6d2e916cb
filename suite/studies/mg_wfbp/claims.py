"""The MG-WFBP paper's claims about a network, each with a verdict."""

from collections.abc import Sequence
from typing import NamedTuple

from suite.studies.claim import Claim
from suite.studies.mg_wfbp.paper import PUBLISHED, Efficiencies, Model, Step, crossing


class Line(NamedTuple):
    """A claim in words, its figure, ours, and the verdict: a line of the table."""

    text: str
    paper: str
    ours: str
    verdict: str


def claims(model: Model, simulated: Efficiencies, predicted: Sequence[Step]) -> list[Line]:
    """Those about this network, in the paper's order."""
    lines = []
    for claim in PUBLISHED.claims.values():
        about = claim.about
        if about.get("model", model.label) != model.label:
            continue
        if "over" in about:
            at_most = simulated[max(simulated)]
            lines.append(_factor(claim, model, at_most["mg_wfbp"] / at_most[about["over"]]))
        elif "efficiency" in about:
            lines.append(_efficiency(claim, model, simulated[max(simulated)][about["efficiency"]]))
        elif "predicted_over" in about:
            lines.append(_predicted(claim, model, predicted))
        else:
            lines.append(_crossing(claim, simulated))
    return lines


def _factor(claim: Claim, model: Model, ratio: float) -> Line:
    return Line(claim.text, f"{claim.number[0]:.2f}x", f"{ratio:.2f}x", _verdict(claim, model, ratio))


def _efficiency(claim: Claim, model: Model, share: float) -> Line:
    return Line(claim.text, claim.shown, f"{100 * share:.1f} %", _verdict(claim, model, share))


def _crossing(claim: Claim, simulated: Efficiencies) -> Line:
    """One message becomes better than one per layer on more nodes than the claim's, or nowhere."""
    between = crossing(simulated)
    ours = "nowhere" if between is None else f"between {between[0]} and {between[1]}"
    return Line(claim.text, claim.shown, ours, claim.judge(0 if between is None else between[0]).state)


def _predicted(claim: Claim, model: Model, predicted: Sequence[Step]) -> Line:
    """What was measured on the most nodes, and what is predicted of it."""
    at = {step.schedule: step for step in predicted if step.nodes == model.nodes[-1]}
    rival, own = at[claim.about["predicted_over"]], at["mg_wfbp"]
    measured, ours = rival.measured / own.measured, rival.predicted / own.predicted
    return Line(claim.text, f"{measured:.2f}x", f"{ours:.2f}x", claim.judge(ours, expected=measured).deviation)


def _verdict(claim: Claim, model: Model, ours: float) -> str:
    verdict = claim.judge(ours)
    return verdict.deviation + (", from a reconstructed trace" if verdict.good and not model.measured else "")
