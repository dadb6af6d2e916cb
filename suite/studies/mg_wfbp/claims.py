"""The MG-WFBP paper's claims about a network, each with a verdict."""

from collections.abc import Sequence

from suite.studies.claim import Claim
from suite.studies.findings import Finding
from suite.studies.mg_wfbp.paper import PUBLISHED, Efficiencies, Model, Step, crossing


def claims(model: Model, simulated: Efficiencies, predicted: Sequence[Step]) -> list[Finding]:
    """Those about this network, in the paper's order."""
    found = []
    for claim in PUBLISHED.claims.values():
        about = claim.about
        if about.get("model", model.label) != model.label:
            continue
        if "over" in about:
            at_most = simulated[max(simulated)]
            found.append(_factor(claim, model, at_most["mg_wfbp"] / at_most[about["over"]]))
        elif "efficiency" in about:
            found.append(_efficiency(claim, model, simulated[max(simulated)][about["efficiency"]]))
        elif "predicted_over" in about:
            found.append(_predicted(claim, model, predicted))
        elif claim.id == "crossing":
            found.append(_crossing(claim, simulated))
    return found


def _factor(claim: Claim, model: Model, ratio: float) -> Finding:
    return Finding(claim, f"{ratio:.2f}x{_from(model)}", claim.judge(ratio))


def _efficiency(claim: Claim, model: Model, share: float) -> Finding:
    return Finding(claim, f"{100 * share:.1f} %{_from(model)}", claim.judge(share))


def _crossing(claim: Claim, simulated: Efficiencies) -> Finding:
    """One message becomes better than one per layer on more nodes than the claim's, or nowhere."""
    between = crossing(simulated)
    here = "nowhere" if between is None else f"between {between[0]} and {between[1]}"
    return Finding(claim, here, claim.judge(0 if between is None else between[0]))


def _predicted(claim: Claim, model: Model, predicted: Sequence[Step]) -> Finding:
    """What was measured on the most nodes, and what is predicted of it."""
    at = {step.schedule: step for step in predicted if step.nodes == model.nodes[-1]}
    rival, own = at[claim.about["predicted_over"]], at["mg_wfbp"]
    measured, ours = rival.measured / own.measured, rival.predicted / own.predicted
    verdict = claim.judge(ours, expected=measured)
    return Finding(claim, f"{ours:.2f}x{_from(model)}", verdict, figure=f"{measured:.2f}x")


def _from(model: Model) -> str:
    return "" if model.measured else ", from a reconstructed trace"
