#!/usr/bin/env bash
# Run a command as if on another machine, by all that a program can ask: the processor's name and flags, the cores, the
# host name, the time zone and the locale. Needs root, for mount and UTS namespaces.
#   scripts/other_machine.sh KIND COMMAND...      KIND: avx2, avx512, amx, plain (one core, no vector instructions), or
#                                                 epyc (the name of the committed results' machine, another generation)
# Instructions themselves stay: libraries ask the processor, so arithmetic is this machine's, and so is memory's rate.
set -euo pipefail

usage() {
    echo "other_machine.sh: $1; use: scripts/other_machine.sh avx2|avx512|amx|plain|epyc COMMAND..." >&2
    exit 2
}

[ $# -ge 2 ] || usage "needs a KIND and a COMMAND"
kind=$1
shift
add='' cores=()
case $kind in
    avx2) name='Other Processor 7000' drop='avx512[a-z0-9_]*|amx_[a-z0-9]*|avx_vnni' ;;
    avx512) name='Other Xeon Gold' drop='amx_[a-z0-9]*|avx512_vp2intersect|avx512_bf16' ;;
    amx) name='Other Xeon Platinum' drop='amx_bf16|amx_int8|amx_tile' add=' amx_bf16 amx_int8 amx_tile' ;;
    plain) name='Other Small Core' drop='avx[a-z0-9_]*|amx_[a-z0-9]*|fma|f16c' cores=(taskset -c 0) ;;
    epyc) name='AMD EPYC' drop='avx512f|avx512_vp2intersect' add=' avx512f avx512_vp2intersect' ;;
    *) usage "no such kind: $kind" ;;
esac
[ "$(id -u)" = 0 ] || usage "needs root"

cpuinfo=$(mktemp)
trap 'rm -f "$cpuinfo"' EXIT
# Once more for the second of two neighbours, whose space between them belongs to the first.
sed -E -e "s/^(model name[[:space:]]*:).*/\1 $name/" \
    -e "/^flags/{s/[[:space:]]($drop)([[:space:]]|\$)/ \2/g;s/[[:space:]]($drop)([[:space:]]|\$)/ \2/g;s/\$/$add/}" \
    /proc/cpuinfo >"$cpuinfo"
chmod a+r "$cpuinfo" # as /proc/cpuinfo is, which PyTorch reads: the command may run as another user
export TZ=Asia/Kathmandu LC_ALL=C.UTF-8
# shellcheck disable=SC2016  # the inner shell expands these
unshare --mount --uts bash -c 'mount --bind "$0" /proc/cpuinfo && hostname other-machine && exec "$@"' \
    "$cpuinfo" "${cores[@]}" "$@"
