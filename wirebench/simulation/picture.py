"""A simulated step as a picture, in the format of a real run's timeline."""

from wirebench.simulation.simulator import Simulated
from wirebench.telemetry.timeline import ALL_GATHER, Timeline


def draw(simulated: Simulated, timeline: Timeline) -> None:
    """The step as a picture, in the format of a real run's."""
    step = simulated.step
    timeline.draw("compute", "forward", 0.0, step.backward)
    timeline.draw("compute", "backward", step.backward, step.backward + simulated.passes.backward)
    for span in step.spans:
        # The all-gather under the next forward pass is drawn where the step before has left it: under this one.
        name, shift = (f" {ALL_GATHER}", step.seconds) if span.half == "copy" else ("", 0.0)
        begin, end, ready = (max(0.0, at - shift) for at in (span.start, span.end, span.ready))
        elements = simulated.elements[span.bucket]
        timeline.draw("exchange", f"bucket {span.bucket}{name}", begin, end, ready=ready, elements=elements)
