"""The MG-WFBP paper's claims about a network, each with a verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from papers.claim import Claim
from papers.findings import Finding
from papers.mg_wfbp.paper import PUBLISHED, Efficiencies, PaperModel, PaperStep, crossing
from wirebench.costmodel.formulas import CostLine
from wirebench.simulation import trace

UNPUBLISHED = "the times of its layers were not published"


def claims(model: PaperModel, simulated: Efficiencies, predicted: Sequence[PaperStep]) -> list[Finding]:
    """Findings on the claims about this network, in the paper's order."""
    found = []
    for claim in PUBLISHED.claims.values():
        about = claim.about
        if about.get("model", model.label) != model.label:
            continue
        if not model.measured and not about.keys() & {"gradient_bytes", "parameters"}:
            claim = replace(claim, unstated=UNPUBLISHED)
        if "over" in about:
            at_most = simulated[max(simulated)]
            found.append(_factor(claim, model, at_most["mg_wfbp"] / at_most[about["over"]]))
        elif "efficiency" in about:
            found.append(_efficiency(claim, model, simulated[max(simulated)][about["efficiency"]]))
        elif "predicted_over" in about:
            found.append(_predicted(claim, model, predicted))
        elif "predicted_efficiency" in about:
            found.append(_predicted_efficiency(claim, model, predicted))
        elif "optimal" in about:
            found.append(_optimal(claim, model, simulated[max(simulated)]))
        elif "gradient_bytes" in about:
            found.append(_size(claim, model, "MB", times=4))
        elif "parameters" in about:
            found.append(_size(claim, model, "million", times=1))
        elif claim.id == "crossing":
            found.append(_crossing(claim, simulated))
    return found


def network_claims(line: Callable[[int], CostLine]) -> list[Finding]:
    """Findings on the claims about the network.

    line  what an all-reduce costs on a number of nodes
    """
    found = []
    for claim in PUBLISHED.claims.values():
        if "startup" in claim.about:
            microseconds = 1e6 * line(claim.about["startup"]).a
            found.append(Finding(claim, f"{microseconds:.2f} us", claim.judge(None)))
        elif "all_reduce_bytes" in claim.about:
            milliseconds = 1e3 * line(8).seconds(claim.about["all_reduce_bytes"])
            found.append(Finding(claim, f"{milliseconds:.2f} ms", claim.judge(milliseconds)))
    return found


def _size(claim: Claim, model: PaperModel, unit: str, times: int) -> Finding:
    millions = times * sum(layer.numel for layer in trace.load(trace.find(model.trace)).layers) / 1e6
    return Finding(claim, f"{millions:.1f} {unit}", claim.judge(millions))


def _factor(claim: Claim, model: PaperModel, ratio: float) -> Finding:
    return Finding(claim, f"{ratio:.2f}x{_from(model)}", claim.judge(ratio))


def _efficiency(claim: Claim, model: PaperModel, share: float) -> Finding:
    """A trace that was made to give the figure confirms nothing, so that its claim is not judged."""
    return Finding(claim, f"{100 * share:.1f} %{_from(model)}", claim.judge(None if claim.not_run else share))


def _crossing(claim: Claim, simulated: Efficiencies) -> Finding:
    """One message becomes better than one per layer on more nodes than the claim's, or nowhere."""
    between = crossing(simulated)
    here = "nowhere" if between is None else f"between {between[0]} and {between[1]}"
    return Finding(claim, here, claim.judge(0 if between is None else between[0]))


def _predicted(claim: Claim, model: PaperModel, predicted: Sequence[PaperStep]) -> Finding:
    """What was measured on the most nodes, and what is predicted of it."""
    at = {step.schedule: step for step in predicted if step.nodes == model.nodes[-1]}
    rival, own = at[claim.about["predicted_over"]], at["mg_wfbp"]
    measured, ours = rival.measured / own.measured, rival.predicted / own.predicted
    verdict = claim.judge(None)  # a prediction is no measurement, and stands beside the claim only
    return Finding(claim, f"predicted {ours:.2f}x{_from(model)}", verdict, figure=f"{measured:.2f}x")


def _predicted_efficiency(claim: Claim, model: PaperModel, predicted: Sequence[PaperStep]) -> Finding:
    """The lowest on the claim's numbers of nodes, and the lowest that the authors measured there."""
    schedule, nodes = claim.about["predicted_efficiency"], claim.about["nodes"]
    steps = [step for step in predicted if step.schedule == schedule and step.nodes in nodes]
    ours = min(model.alone / step.predicted for step in steps)
    measured = min(model.alone / step.measured for step in steps)
    figure = f"{claim.figure()}; measured {100 * measured:.1f} %"
    return Finding(claim, f"predicted {100 * ours:.1f} %{_from(model)}", claim.judge(None), figure=figure)


def _optimal(claim: Claim, model: PaperModel, shares: Mapping[str, float]) -> Finding:
    """The best merging's step over the greedy rule's: efficiencies are the steps' inverse."""
    ratio = shares[claim.about["optimal"]] / shares["optimal"]
    return Finding(claim, f"{ratio:.3f}x{_from(model)}", claim.judge(ratio))


def _from(model: PaperModel) -> str:
    return "" if model.measured else ", from a reconstructed trace"
