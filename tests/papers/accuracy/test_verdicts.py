"""What is said of the papers' headlines, and what is refused before anything is said."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from papers.accuracy import verdicts
from papers.accuracy.modern import HALF, LARGER
from papers.accuracy.rates import tried
from papers.accuracy.report import methods_of
from papers.accuracy.tasks import GPT, TASKS
from papers.accuracy.verdicts import rounds_of
from tests.papers import verb
from tests.papers.accuracy.test_modern import put, put_rate, record
from wirebench.compressors.common.intervals import Intervals
from wirebench.errors import UserError

pytestmark = pytest.mark.sampled(3)

report = verb.report("accuracy")


def test_rounds_are_those_of_the_intervals() -> None:
    """Dense steps 0, 1, 2, 4, 6 and 10; sums of a bit in the other 6 up to step 11, then 12, 6 and 6."""
    assert rounds_of(Intervals(2, 12, 12, 4), 60) == (6, 30)
    assert rounds_of(Intervals(9, 9, 32_678, 1), 60) == (9, 51)


def adam(loss: float, megabytes: float, *constants: int) -> dict[str, Any]:
    options = dict(zip(Intervals._fields, constants, strict=True))
    return record(loss, megabytes, compressor={"name": "zero_one_adam", **options}) | {"parameters": 1_000_000}


def slow(made: dict[str, Any]) -> dict[str, Any]:
    """The run with as many bytes to exchange as take half a second on a slow network."""
    made["requests"][0]["payload_bytes"] = 4_000_000
    return made


def put_all(tmp_path: Path) -> None:
    """Three seeds of methods that there are claims about, and other rates of DiLoCo."""
    for seed, wobble in enumerate((-0.001, 0.0, 0.001)):
        put(tmp_path, "dense", seed, slow(record(2.0 + wobble, 1000.0)))
        put(tmp_path, HALF, seed, slow(record(2.3 + wobble, 500.0)), curve=[[30, 2.3, 5e8]], last_bytes=5e8 / 30)
        for label, loss in (("diloco", 2.1), ("diloco momentum=0.5", 2.06)):
            put(tmp_path, label, seed, record(loss + wobble, 33.0, optimizer={"lr": 0.002}))
        put(tmp_path, "local_sgd", seed, record(2.04 + wobble, 33.0))
        put(tmp_path, "sparseloco", seed, record(2.05 + 2 * wobble, 10.0))
        put(tmp_path, "sparseloco k=512", seed, record(2.05 + 2 * wobble, 12.0))
        put(tmp_path, "sparseloco every=2 beta=1", seed, record(2.05 + 2 * wobble, 12.0))
        # 9 dense rounds of 6 MB and 51 of a bit, 0.1875 MB; 6 and 30.
        put(tmp_path, "onebit_adam", seed, adam(2.0 + wobble, 63.5625, 9, 9, 32_678, 1))
        put(tmp_path, "zero_one_adam", seed, adam(2.2 + 2 * wobble, 41.625, 2, 12, 12, 4), rounds=36)
    for label in ("diloco", "diloco momentum=0.5"):
        for rate in (0.00067, 0.006):
            put_rate(tmp_path, f"{label} lr={rate:g}", 0, record(2.2, 33.0, optimizer={"lr": rate}))


def test_the_headlines_are_judged(tmp_path: Path) -> None:
    put_all(tmp_path)
    methods, others = methods_of(tmp_path / "today/gpt"), tried(tmp_path / "today/gpt_rates", TASKS["gpt_rates"])
    found = {(each.claim.id, each.about): each for each in verdicts.findings(GPT, methods, others)}
    loss = found["sparseloco_loss", "sparseloco"]
    assert loss.here.endswith(" of diloco momentum=0.5, the better of 2") and loss.verdict.state == "reproduced"
    local = found["sparseloco_loss_local", "sparseloco k=512"].verdict
    assert local.words == "not decidable: other rates of local_sgd were not tried"
    assert found["sparseloco_bytes", "sparseloco"].verdict.state == "reproduced"
    larger = found["sparseloco_bytes", "sparseloco every=2 beta=1"]
    assert larger.here == "83.33x at 1.025x the loss" and larger.verdict.state == "not reproduced"
    sizes, rounds = found["zero_one_bytes", ""], found["zero_one_rounds", ""]
    assert sizes.here == "1.53x; by its constants 1.53x, by the authors' in 152,000 steps 6.49x"
    assert sizes.verdict.words == "direction reproduced: 1.53x, not 7.70x"
    assert rounds.here == "40.0 % (36 of 60); by its constants 40.0 %, by the authors' in 152,000 steps 51.1 %"
    assert rounds.verdict.words == "direction reproduced: 40.0 %, not 54.0 %"
    for claim in ("zero_one_loss", "zero_one_loss_dense"):
        assert "; other rates of zero_one_adam were not tried" in found[claim, ""].verdict.words
        assert found[claim, ""].verdict.state == "not decidable"
    assert ("qgz_bytes", "") not in found
    assert report(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "today/gpt" / "table.md").read_text()
    assert "--task gpt --methods quantised_sum bf16` | not run here: no runs of it" in text
    assert "| bytes | 10 of 10 | sparseloco, local_sgd, onebit_adam |" in text
    assert "| sparseloco | 3 | 2.0500 +- 0.0020 | 1.025x | worse" in text
    assert f"| {HALF} | 3 | 2.3000 +- 0.0010 | 1.150x | - |" in text
    assert "Comparisons in this table: 8. Each p" in text and "has its 95 % interval in brackets" in text
    # Dense training takes 0.94 s at 100 Gbit/s, half of it 0.47 s, and local SGD 0.91 s, and 2 % more: 98 % of the way,
    # 2.0055.
    between = "0.967x between dense half and dense, better (p < 0.001) | 1.017x between dense half and dense, worse"
    less = "0.887x dense half, which takes longer, better (p < 0.001)"
    assert f"| local_sgd | {less} | {less} | {between}" in text
    assert "dense half and dense, as good, a little better (p" in text


def test_runs_of_other_lengths_are_refused_but_for_shorter_dense_ones(tmp_path: Path) -> None:
    put(tmp_path, "dense", 0, record(2.0, 1.0))
    put(tmp_path, HALF, 0, record(2.0, 1.0, train={"epochs": 4}))
    put(tmp_path, LARGER[0], 0, record(2.0, 1.0, data={"name": "python_sources", "batch_size": 16}))
    for rate in (0.00067, 0.006):
        put_rate(tmp_path, f"{HALF} lr={rate:g}", 0, record(2.0, 1.0, train={"epochs": 4}, optimizer={"lr": rate}))
        put_rate(tmp_path, f"dense lr={rate:g}", 0, record(2.0, 1.0, optimizer={"lr": rate}))
    assert len(methods_of(tmp_path / "today/gpt")) == 3
    assert len(tried(tmp_path / "today/gpt_rates", TASKS["gpt_rates"])) == 4
    assert report(["--out", str(tmp_path)]) == 0
    put(tmp_path, "topk", 0, record(2.0, 1.0, train={"epochs": 4}))
    with pytest.raises(UserError, match=r"mixes settings: epochs is 1 in dense-0 and 4 in topk-0"):
        methods_of(tmp_path / "today/gpt")


def test_what_diverged_decides_nothing(tmp_path: Path) -> None:
    for seed in range(3):
        put(tmp_path, "onebit_adam", seed, record(2.0, 100.0))
        put(tmp_path, "zero_one_adam", seed, record(2.0, 40.0) | {"status": "diverged" if seed == 1 else "finished"})
    found = {each.claim.id: each.verdict for each in verdicts.findings(GPT, methods_of(tmp_path / "today/gpt"))}
    assert found["zero_one_loss"].words == "not decidable: zero_one_adam (1 of 3 diverged)"


def test_seeds_of_one_method_have_one_setting_and_one_text(tmp_path: Path) -> None:
    def words(label: str, seed: int, *more: str) -> str:
        [method] = GPT.methods(GPT, [label], 0.0)
        return shlex.join(["python", "train.py", GPT.config, *GPT.words(method, seed, more)])

    put(tmp_path, "diloco", 0, record(2.0, 1.0), launch=words("diloco", 0))
    put(tmp_path, "diloco", 2, record(2.0, 1.0), launch=words("diloco", 2))
    assert len(methods_of(tmp_path / "today/gpt")[0].runs) == 2
    put(tmp_path, "topk", 1, record(2.0, 1.0), launch=words("topk", 1, "compressor.density=0.1"))
    with pytest.raises(UserError, match=r"settings is \[\] in diloco-0 and \['compressor.density=0.1'\]"):
        methods_of(tmp_path / "today/gpt")
    put(tmp_path / "lacking", "topk", 1, record(2.0, 1.0), launch=words("diloco", 1))
    with pytest.raises(UserError, match=r"topk-1: was made without compressor.density=0.01, which topk has"):
        methods_of(tmp_path / "lacking/today/gpt")
    put(tmp_path / "unknown", "adafactor", 0, record(2.0, 1.0))
    with pytest.raises(UserError, match="adafactor-0: the study trains no 'adafactor' here"):
        methods_of(tmp_path / "unknown/today/gpt")
    more = words("topk", 1, "train.max_steps=9", "compressor.density=0.1")
    put(tmp_path / "alike", "topk", 1, record(2.0, 1.0), launch=more)
    assert report(["--out", str(tmp_path / "alike")]) == 0
    text = (tmp_path / "alike/today/gpt/table.md").read_text()
    assert "All runs have compressor.density=0.1 train.max_steps=9. " in text
    for seed, version in enumerate(("3.11.7", "3.11.7", "3.11.9")):
        made = record(2.0, 1.0)
        made["environment"] = {**made.get("environment", {}), "versions": {"python": version}}
        put(tmp_path / "pythons", "dense", seed, made)
    with pytest.raises(UserError, match=r"python is '3.11.7' in dense-0 and '3.11.9' in dense-2"):
        methods_of(tmp_path / "pythons/today/gpt")


def test_a_claim_about_two_rivals_waits_for_both(tmp_path: Path) -> None:
    for seed in range(3):
        put(tmp_path, "sparseloco", seed, record(2.0 + seed / 100, 1.0))
        put(tmp_path, "diloco", seed, record(2.1 + seed / 100, 1.0))
    known = {each.claim.id for each in verdicts.findings(GPT, methods_of(tmp_path / "today/gpt"))}
    assert "sparseloco_loss" not in known
