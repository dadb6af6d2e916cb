"""What is known of a model's compressors: top-1 of images, or the loss of a language model."""

from papers.today.known import top1
from wirebench.planner.accuracy import Accuracies


def load(images: bool, numel: int) -> Accuracies:
    """Of models of `numel` parameters that take images, or of others."""
    if images:
        return top1.load(numel)
    # Imported where it is needed: SciPy, which it compares with, takes seconds to import.
    from papers.today.known import losses

    return losses.load()
