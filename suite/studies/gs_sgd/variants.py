"""gs-SGD and gTop-k as the papers and their released codes have them: what Table II's factors can and cannot be."""

from suite.studies.gs_sgd.claims import PUBLISHED

DAMAGING_K = PUBLISHED.tables["entries_sent"]["k"]
_RULE = (
    "compressor.fill=random", "compressor.p1=0", "compressor.p2=1", "compressor.broadcast=sketch",
    "compressor.agree=majority", "compressor.reseed=false", "compressor.rows=5",
)  # fmt: skip
LITERAL = (*_RULE, "compressor.columns_per_entry=4")
"""gs-SGD as printed, with our reading of its sketch's size: configs/cifar10_resnet20_gs_sgd_literal.toml."""


def variants(density: float) -> dict[str, list[str]]:
    """Overrides by label. At equal k gs-SGD sends fewer bytes than gTop-k only with a table of fewer than k cells."""
    name, share = "compressor.name=gs_sgd", f"compressor.density={density:g}"
    star = ["compressor.name=sketched_sgd", "compressor.dense_below=0"]
    return {
        "gs_sgd literal": [name, *LITERAL, share],
        "gs_sgd literal c=0.1k": [name, *_RULE, "compressor.columns_per_entry=0.1", share],
        f"gs_sgd literal k={DAMAGING_K}": [name, *LITERAL, f"compressor.k={DAMAGING_K}"],
        # The same sketches as gs-SGD's: what is left is the difference between a tree and one server.
        "sketched_sgd literal": [*star, *LITERAL, share],
        "gtopk 16 bytes": ["compressor.name=suite.studies.gs_sgd.released_gtopk", share],
    }
