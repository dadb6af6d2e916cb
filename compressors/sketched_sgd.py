"""Sketched-SGD: gs-SGD with a parameter server, which sums the Count-Sketches and asks for the exact entries.

Ivkin et al., "Communication-efficient Distributed SGD with Sketching", NeurIPS 2019, arXiv 1903.04488. All ranks send
to one, which answers all: P messages through one link, where gs-SGD's tree takes ceil(log2 P) rounds. fill = estimate
with p2 = 4 is what its authors released; fill = random is the paper's HEAVYMIX.
"""

from compressors.gs_sgd import GsSgd


class SketchedSgd(GsSgd):
    """Takes gs-SGD's options and does its work, on a star.

    density    share of a bucket's entries to send, at least one
    k          entries to send of the whole model, in place of density (not of a warm-up's); 0: density counts. Of the
               two one is given
    rows, columns, ratio    size of the table: columns of the whole model (0: 4 k), or as a share of a bucket
    fill, p2   `random` or `estimate`; p2 k candidates
    p1         a rank sketches its p1 k largest entries only; 0: all
    broadcast, indices      who looks into the sum of sketches, and how its choice is coded
    hash, reseed            of the sketch
    momentum, nesterov, clip, masking  of the memory

    Memory and measures: as gs_sgd.
    """

    collective = "star"
