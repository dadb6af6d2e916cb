"""gs-SGD and gTop-k as the papers and their released codes have them, and what the gs-SGD paper claims."""

from pathlib import Path

from papers.published import load

PUBLISHED = load(Path(__file__).parent)
READINGS = (0.004, 0.001)
"""Densities beside 1 %: at which the paper's own warm-up ends, and which gTop-k and DGC have."""


def at(label: str, share: float) -> str:
    """The label of a method at another density than 1 %."""
    return f"{label} density={share:g}"


DAMAGING_K = PUBLISHED.tables["entries_sent"]["k"]
_RULE = (
    "compressor.fill=random", "compressor.p1=0", "compressor.p2=1", "compressor.broadcast=sketch",
    "compressor.agree=majority", "compressor.reseed=false", "compressor.rows=5",
)  # fmt: skip
LITERAL = (*_RULE, "compressor.columns_per_entry=4")
"""gs-SGD as printed, with our reading of its sketch's size: configs/cifar10_resnet20_gs_sgd_literal.toml."""


PAPERS = "configs/papers/cifar10_{}_{}.toml"
DENSE_OF = {"resnet20": PAPERS.format("resnet20", "dense"), "vgg16": "configs/cifar10_vgg16_dense.toml"}
_STAR = ("compressor.dense_below=0", *LITERAL)
SWEPT = (10_000, 20_000, 50_000)
SWEEPS = {
    # 5 rows of 4 columns an entry are more than ResNet-20 has from 13,487 entries on; of one column, 50,000 fit.
    "k": ("compressor.columns_per_entry=1", "compressor.k={}"),
    "columns": ("compressor.density=0.01", "compressor.columns={}"),
}
"""What the paper's "parameter of 10000" may be, and how it is varied: Fig. 6 and 7."""


def readings() -> dict[str, list[str]]:
    """Overrides by label: the methods as printed at READINGS in place of 1 %."""
    literal = variants(0.01)
    bases = {
        "gtopk": ["compressor.name=gtopk"],
        **{label: literal[label] for label in ("gs_sgd literal", "sketched_sgd literal")},
    }
    return {
        at(label, share): [
            *(word for word in words if not word.startswith("compressor.density")),
            f"compressor.density={share:g}",
        ]
        for share in READINGS
        for label, words in bases.items()
    }


def swept(what: str, value: int) -> str:
    """The label of a row of a sweep."""
    return f"gs_sgd literal {what}={value}" + (" columns_per_entry=1" if what == "k" else "")


def on_cluster(model: str, density: float = 0.01) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Config and overrides of the paper's methods on a network that computes, by label; of 1 % as the configs say."""
    share = () if density == 0.01 else (f"compressor.density={density:g}",)
    configs = {method: PAPERS.format(model, method) for method in ("gtopk", "gs_sgd", "gs_sgd_literal", "sketched_sgd")}
    rows = {method.replace("_literal", " literal"): (config, share) for method, config in configs.items()}
    rows["sketched_sgd literal"] = (configs["sketched_sgd"], (*_STAR, *share))
    return {at(label, density) if share else label: row for label, row in rows.items()}


def sweep(model: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Config and overrides of Fig. 6 and 7 in both readings, by label."""
    config = PAPERS.format(model, "gs_sgd_literal")
    return {
        swept(what, value): (config, tuple(word.format(value) for word in words))
        for what, words in SWEEPS.items()
        for value in SWEPT
    }


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
        "gtopk 16 bytes": ["compressor.name=papers.gs_sgd.released_gtopk", share],
    }
