#!/usr/bin/env bash
# What a GPU shows of the compressors' kernels, in one call of at most six minutes. See usage below.
set -uo pipefail

if [ $# -lt 1 ] || [ "$1" = --help ]; then
    cat <<'TEXT'
usage: scripts/gpu_check.sh FOLDER

Three blocks; each ends when its time is over, and what it has measured stays in FOLDER:
  right    every kernel against its twin in PyTorch; no hidden waits; CUDA graphs against usual steps (90 s at most)
  fast     `wirebench bench compressors` on ResNet-50's 25.6 million floats, in copies of the vector  (130 s at most)
  matters  a GPT of 125 million parameters in bf16, one rank: its step with compressors and without   (the rest)
The tables are printed last. After each block FOLDER.tar.gz has all of the folder in one file.

Environment:
  PYTHON   the Python that has torch and Triton (python3)
  JOBS     processes of the first block (8)
  SECONDS_IN_ALL   after which nothing is begun (350)
TEXT
    exit $(($# < 1 ? 2 : 0))
fi
python=${PYTHON:-python3}
mkdir -p "$1" && out=$(cd "$1" && pwd) || exit 2
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

# One that is not there ends a block at its begin: what is said first says why.
"$python" - <<'PYTHON' | tee "$out/lacking.txt"
from importlib.util import find_spec

needed = "torch triton numpy scipy psutil rich safetensors filelock tomli_w pynvml torchvision pytest pytest_timeout xdist hypothesis"
lacking = [name for name in needed.split() if find_spec(name) is None]
if lacking:
    print("gpu_check: this Python lacks", ", ".join(lacking))
PYTHON
parallel=()
"$python" -c 'import xdist' 2>/dev/null && parallel=(-n "${JOBS:-8}")

within() { # seconds, a command: it is interrupted as by Ctrl-C, so that it writes what it has
    timeout --foreground --signal INT --kill-after 10 "$@"
}
pack() {
    tar -czf "$out.tar.gz" -C "$(dirname "$out")" "$(basename "$out")"
}

within 90 "$python" -m pytest -vv --tb=short --durations=15 --continue-on-collection-errors -m gpu "${parallel[@]}" \
    tests/compressors/kernels tests/compressors/sparse tests/compressors/lowrank tests/compose/test_on_gpu.py \
    -k "not trains_alike and not train_alike" >"$out/right.txt" 2>&1
right=$?
pack

within 130 "$python" -m wirebench bench compressors --device cuda --sizes 25.6m --repeats 5 --quiet \
    --json "$out/cells.jsonl" >"$out/fast.txt" 2>&1
fast=$?
pack

matters() { # its folder, its words
    local name=$1 left=$((${SECONDS_IN_ALL:-350} - SECONDS))
    shift
    if [ "$left" -lt 1 ]; then
        echo "gpu_check: gpt_$name: no time is left"
        return
    fi
    within "$((left < 40 ? left : 40))" "$python" train.py configs/tables/today_gpt_125m.toml "$@" engine.workers=1 \
        train.max_steps=30 train.warmup_steps=10 train.eval_every=0 output.dir="$out/gpt_$name" >"$out/gpt_$name.txt" 2>&1 ||
        echo "gpu_check: gpt_$name: exit code $?; see $out/gpt_$name.txt"
}
for name in none topk powersgd fp16 quantised_sum; do
    matters $name compressor.name=$name
    [ $name = topk ] && matters topk_graphs compressor.name=topk engine.cuda_graphs=true
done

grep -E '^(FAILED|ERROR) ' "$out/right.txt" | head -n 20
tail -n 1 "$out/right.txt"
cat "$out/fast.txt"
"$python" -m wirebench table "$out" | tee "$out/table.txt"
pack
[ $right = 0 ] && [ $fast = 0 ]
