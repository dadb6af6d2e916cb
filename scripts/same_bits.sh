#!/usr/bin/env bash
# Whether two commits train to the same bits: every compressor and every scheduler, on all three engines.
#   bash scripts/same_bits.sh FIRST LAST [engine ...]      about 15 min a commit on two quiet cores
# Needs the environment that `make setup` makes. The commits are checked out beside each other in a temporary folder.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -ge 2 ] || { echo 'usage: scripts/same_bits.sh FIRST LAST [local|torch|horovod ...]' >&2; exit 2; }
# shellcheck disable=SC2034 # read by name below
first=$1 last=$2
shift 2
engines=("${@:-local}")
[ $# -gt 0 ] || engines=(local torch horovod)

work=$(mktemp -d)
trap 'rm -rf "$work"; git -C "$root" worktree prune' EXIT
export PATH="$root/.venv/bin:$PATH" OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo

launch() { # launch ENGINE CHECKOUT OUT: in the checkout, with its own code
    case $1 in
        local | torch | horovod) python "$root/scripts/same_bits.py" run "$1" "$3" ;;
        *) echo "no such engine: $1" >&2; return 2 ;;
    esac
}

for side in first last; do
    git -C "$root" worktree add --quiet --detach "$work/$side" "${!side}"
    for engine in "${engines[@]}"; do
        mkdir -p "$work/$side-out"
        (cd "$work/$side" && PYTHONPATH="$PWD" launch "$engine" "$work/$side" "$work/$side-out/$engine.json" \
            >"$work/$side-$engine.log" 2>&1) || { tail -n 20 "$work/$side-$engine.log" >&2; exit 1; }
    done
done

failed=0
for engine in "${engines[@]}"; do
    python "$root/scripts/same_bits.py" compare "$work/first-out/$engine.json" "$work/last-out/$engine.json" || failed=1
done
exit "$failed"
