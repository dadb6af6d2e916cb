"""Records side by side: one column per run, the expected values of its config beside what it gave."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from wirebench.record.gpu_use import GpuUse, gpu_use
from wirebench.telemetry.step_stats import PHASES

Record = dict[str, Any]
MISSING = "-"
HEALTH = {
    "health/compression_error": "compression error",
    "health/topk_overlap": "overlap with top-k",
    "health/residual_share": "residual share",
}
"""Shown where a run took readings of them (output.health_every), with all that the method measured of itself."""
OWN = "compressor/"
MAIN = (
    "engine",
    "model",
    "compressor",
    "scheduler",
    "images/s [p10 - p90]",
    "samples/s [p10 - p90]",
    "images/s with exchanges",
    "samples/s with exchanges",
    "tokens/s",
    "step ms [p10 - p90]",
    "  exchange_exposed",
    "wire bytes/step",
    "ratio wire",
    "ratio wire, last step",
    "ratio interface",
    "top1",
    "bits per byte",
    "GPU",
    "joules/sample",
    "GPU sampling",
)
"""The lines of a table that is not asked for everything."""
USUAL = {"collective": "native", "status": "finished"}
"""The table omits these lines if all runs have this value."""
NOT_COUNTED = (("train", "warmup_steps"), ("output", "health_every"))
RATIOS = {"wire_last_step": "ratio wire, last step", "nic": "ratio interface"}
SOURCES = {"counter": "the GPU's counter", "power": "sampled power"}
BUSY = 0.15
"""Share of a machine's cores that other processes may use; beyond it times are not comparable."""
TIMES_AS_MANY = 2
"""The interface's bytes are pointed out from this multiple of the bytes of `wire` on."""


def unit_of(record: Record) -> str:
    """What a batch of the run has: images or, where the model takes none, samples."""
    return str(record.get("samples", {}).get("unit", "images"))


def rows(record: Record) -> dict[str, str]:
    """The lines of one run's column, label to text; '-' where the record has null. Takes a valid record."""
    config = record["config"]
    expected = {key: value for key, value in config.get("expected", {}).items() if value}
    lines = {
        "engine": f"{record['engine']} x {record['world_size']} ({record['device']})",
        **{section: _plugin(config, section) for section in ("model", "compressor", "scheduler", "collective")},
        "optimizer": _optimizer(config.get("optimizer", {})),
        "data": _data(config.get("data", {})),
        "status": record["status"],
        f"{unit_of(record)}/s [p10 - p90]": _spread(record["images_per_second"], _rate)
        + _beside(expected.get("images_per_second"), _rate),
        **_mean_rate(record),
        **_tokens(record),
        "step ms [p10 - p90]": _spread(record["step_seconds"], _milliseconds),
        **_prediction(record.get("prediction")),
        **{f"  {name}": _or_missing(record["phases"][name], _milliseconds) for name in PHASES},
    }
    for name, count in record["bytes_per_step"].items():
        lines[f"{name.replace('_', ' ')} bytes/step"] = _or_missing(count, _bytes)
    # No interface is counted where all ranks are in one process.
    told = {name: ratio for name, ratio in record["compression_ratio"].items() if name != "nic" or ratio is not None}
    for name, ratio in told.items():
        label = RATIOS.get(name, f"ratio {name.replace('_', ' ')}")
        lines[label] = _or_missing(ratio, lambda value: f"{value:.4g}x")
    lines |= _health(record.get("health") or {})
    lines["top1"] = _or_missing(record["final"]["top1"], _figure) + _beside(expected.get("top1"), _figure)
    lines["loss"] = _or_missing(record["final"]["loss"], _figure)
    measures = {"perplexity": "perplexity", "bits_per_byte": "bits per byte"}
    lines |= {label: _figure(record["final"][name]) for name, label in measures.items() if name in record["final"]}
    lines |= gpu_rows(record)
    lines["seconds"] = _or_missing(record["seconds_total"], _rate) + _beside(expected.get("seconds"), _rate)
    return lines


def gpu_rows(record: Record) -> dict[str, str]:
    """The lines on all ranks' GPUs, label to text; {} for a run without one."""
    use = gpu_use(record)
    if use is None:
        return {}
    most = "" if use.most_watts is None else f" (at most {use.most_watts:.0f} W of one)"
    lines = {
        "GPU": gpu_line(use),
        "  power": _or_missing(use.watts, lambda value: f"{value:.0f} W{most}"),
        "  utilisation": _or_missing(use.utilisation, lambda value: f"{value:.0f} %"),
        "  memory": _or_missing(use.most_memory_mb, lambda value: _bytes(1e6 * value)),
        "  energy": _or_missing(use.joules, lambda value: f"{_rate(value)} J (by {_source(use.source)})"),
        "joules/sample": _or_missing(use.per_sample, _figure) + (f" ({use.partly})" if use.partly else ""),
        "joules/point of top1": _or_missing(use.per_point, _figure),
    }
    if use.sampling is not None:
        lines["GPU sampling"] = _sampling(use.sampling)
    return lines


def _source(source: str | None) -> str:
    """What the joules of all GPUs were read from."""
    return " and ".join(SOURCES.get(each, each) for each in (source or MISSING).split(" and "))


def gpu_line(use: GpuUse) -> str:
    """The GPUs of a run in a line: how many, their power, utilisation and memory, and whose they are."""
    told = {
        "W": _or_missing(use.watts, lambda value: f"{value:.0f}"),
        "% busy": _or_missing(use.utilisation, lambda value: f"{value:.0f}"),
        "": _or_missing(use.most_memory_mb, lambda value: _bytes(1e6 * value)),
    }
    known = [f"{value} {unit}".strip() for unit, value in told.items() if value != MISSING]
    whose = f" ({use.ranks})" if use.ranks else ""
    return f"{use.gpus}{': ' if known else ''}{', '.join(known)}{whose}"


def _sampling(sampling: Mapping[str, float | None]) -> str:
    """The time that sampling the GPUs took, in words."""
    each, often, share = (sampling[name] for name in ("seconds_per_sample", "samples_per_second", "share_of_time"))
    if each is None or often is None or share is None:
        return MISSING
    return f"{_milliseconds(each)} ms, {often:.1f} times a second: {share:.2%} of the time, on a thread beside training"


def _mean_rate(record: Record) -> dict[str, str]:
    """The rate of the mean step, where that is no step of the usual kind: with local steps most exchange nothing."""
    mean, median = record["images_per_second"].get("mean"), record["images_per_second"]["median"]
    if not mean or not median or record["config"].get("scheduler", {}).get("every", 1) == 1:
        return {}
    return {f"{unit_of(record)}/s with exchanges": _rate(mean)}


def _tokens(record: Record) -> dict[str, str]:
    """Where a sample is a sequence, how many tokens a second are trained on; of local steps, with their exchanges."""
    kind = "mean" if _mean_rate(record) else "median"
    tokens, rate = record.get("samples", {}).get("tokens"), record["images_per_second"][kind]
    return {"tokens/s": _or_missing(rate, lambda value: _rate(value * tokens))} if tokens else {}


def remarks(record: Record) -> list[str]:
    """What must be said beside the numbers, a line each: warnings, why nothing was counted, a busy machine."""
    warnings = (f"warning: {text}" for text in record.get("warnings", []))
    gpus = gpu_use(record)
    failed = (f"GPU of {line}" for line in (gpus.problems if gpus else ()))
    return [*warnings, *_uncounted(record), *_beside_the_wire(record), *_busy(record), *failed]


def busy_machines(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of `load` whose machines other programs kept busy."""
    return [each for each in record.get("load") or () if (each["others_cores"] or 0) > BUSY * each["cores"]]


def _busy(record: Record) -> list[str]:
    """Machines that had something else to do, so that times are theirs, too."""
    return [
        f"beside the run {each['others_cores']:.2g} of {each['hostname']}'s {each['cores']} cores were busy with "
        "something else: compare no times of it"
        for each in busy_machines(record)
    ]


def _beside_the_wire(record: Record) -> list[str]:
    """That the interface carried far more than the messages: their ratio is not what the network sees."""
    sizes = record["bytes_per_step"]
    wire, nic = sizes["wire"], sizes["nic"]
    if not wire or nic is None or nic < TIMES_AS_MANY * wire:
        return []
    return [
        f"the interface carried {nic / wire:.3g} times the bytes of the messages: headers, the engine's own control "
        "messages, and what else used it"
    ]


def _uncounted(record: Record) -> list[str]:
    if record["images_per_second"]["steps"] or "steps_done" not in record:
        return []
    done = record["steps_done"] - (record.get("resumed_at") or 0)
    keys = {key: record["config"].get(section, {}).get(key, 0) for section, key in NOT_COUNTED}
    why = f"train.warmup_steps = {keys['warmup_steps']} of {done} steps"
    if done > keys["warmup_steps"] and keys["health_every"]:
        why += f", and the rest were readings (output.health_every = {keys['health_every']})"
    elif done > keys["warmup_steps"]:
        why += ", and a scheduler that weighs times takes more to learn from"
    return [f"no step was counted: {why}"]


def _health(readings: dict[str, dict[str, float]]) -> dict[str, str]:
    """The means under a heading; numbers of single layers are for the record alone."""
    labels = {name: label for name, label in HEALTH.items() if name in readings}
    labels |= {name: name.removeprefix(OWN) for name in readings if name.startswith(OWN) and name.count("/") == 1}
    lines = {f"  {label}": _figure(readings[name]["mean"]) for name, label in labels.items()}
    return {"health, means": "", **lines} if lines else {}


def _prediction(prediction: dict[str, float] | None) -> dict[str, str]:
    """What the simulated step says beside the measured one."""
    if not prediction:
        return {}
    return {"step ms predicted": f"{_milliseconds(prediction['step_seconds'])} ({prediction['error']:+.1%})"}


def table(records: Sequence[Record], everything: bool = False, heads: Sequence[str] = ()) -> Table:
    """The runs side by side; throughput is the world's median step [p10 to p90], bytes are one rank's per step.

    everything  every line of `rows`; otherwise MAIN, and lines that differ between these runs or are not USUAL
    heads       names of the columns, by default the configs' names
    """
    shown = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    shown.add_column("", style="dim", no_wrap=True)
    for head in heads or [str(record["config"].get("name", MISSING)) for record in records]:
        shown.add_column(Text(head), overflow="fold")
    columns = [rows(record) for record in records]
    for label in dict.fromkeys(label for column in columns for label in column):
        values = [column.get(label, MISSING) for column in columns]
        if everything or label in MAIN or _telling(label, values):
            shown.add_row(Text(label), *map(Text, values))
    return shown


def _telling(label: str, values: list[str]) -> bool:
    """Whether a line outside MAIN differs between these runs, or from a plain run that finished."""
    if label in USUAL:
        return set(values) != {USUAL[label]}
    if label == "optimizer":
        return len(set(values)) > 1 or not values[0].startswith(("sgd ", MISSING))
    return label == "data" and len(set(values)) > 1


def _plugin(config: dict[str, Any], section: str) -> str:
    """The plugin's name and its options; the wrappers of a compressor only where they are on."""
    keys = config.get(section, {})
    off = {"name", *(key for key in ("dense_below", "warmup", "profile", "wire", "wire_within") if not keys.get(key))}
    options = [f"{key}={value}" for key, value in keys.items() if key not in off]
    return " ".join([str(keys.get("name", MISSING)), *options])


def _optimizer(keys: dict[str, Any]) -> str:
    """Its name and its largest rate."""
    return f"{keys.get('name', 'sgd')} lr={_figure(keys['lr'])}" if "lr" in keys else MISSING


def _data(keys: dict[str, Any]) -> str:
    return f"{keys.get('name', MISSING)}, batch {keys.get('batch_size', MISSING)}"


def _or_missing(value: float | None, form: Callable[[float], str]) -> str:
    return MISSING if value is None else form(value)


def _spread(values: dict[str, float | None], form: Callable[[float], str]) -> str:
    median, p10, p90 = (values[key] for key in ("median", "p10", "p90"))
    if median is None or p10 is None or p90 is None:
        return MISSING
    return f"{form(median)} [{form(p10)} - {form(p90)}]"


def _beside(value: float | None, form: Callable[[float], str]) -> str:
    return "" if value is None else f" (expected {form(value)})"


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _rate(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def _milliseconds(value: float) -> str:
    return f"{1000 * value:.2f}"


def _bytes(value: float) -> str:
    """Decimal units, as network links are rated."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.4g} B"
