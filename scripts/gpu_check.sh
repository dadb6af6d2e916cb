#!/usr/bin/env bash
# What a GPU shows of the compressors' kernels, in one call of about six minutes. See usage below.
set -uo pipefail

if [ $# -lt 1 ] || [ "$1" = --help ]; then
    cat <<'TEXT'
usage: scripts/gpu_check.sh FOLDER

Three blocks; each ends when its time is over, and what it has measured stays in FOLDER:
  right    every kernel against its twin in PyTorch, on the GPU                                       (1 min)
  fast     `wirebench bench compressors` on ResNet-50's 25.6 million floats, in copies of the vector   (3 min)
  matters  a GPT of 125 million parameters in bf16, one rank: its step with compressors and without    (2 min)
The tables are printed last.

Environment:
  PYTHON   the Python that has torch and Triton (python)
TEXT
    exit $(($# < 1 ? 2 : 0))
fi
python=${PYTHON:-python}
mkdir -p "$1" && out=$(cd "$1" && pwd) || exit 2
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

timeout 90 "$python" -m pytest -q -m gpu tests/compressors/kernels tests/compressors/sparse tests/compressors/lowrank \
    >"$out/right.txt" 2>&1
right=$?

timeout 180 "$python" -m wirebench bench compressors --device cuda --sizes 25.6m --repeats 5 --quiet \
    --json "$out/cells.jsonl" >"$out/fast.txt" 2>&1
fast=$?

for name in none fp16 quantised_sum topk powersgd; do
    timeout 40 "$python" train.py configs/tables/today_gpt_125m.toml compressor.name=$name engine.workers=1 \
        train.max_steps=30 train.warmup_steps=10 train.eval_every=0 output.dir="$out/gpt_$name" >"$out/gpt_$name.txt" 2>&1 ||
        echo "gpu_check: gpt_$name: exit code $?; see $out/gpt_$name.txt"
done

tail -n 3 "$out/right.txt"
cat "$out/fast.txt"
"$python" -m wirebench table "$out"
[ $right = 0 ] && [ $fast = 0 ]
