#!/usr/bin/env bash
# Wirebench on hosts that you can reach by ssh: horovodrun over several machines.
#
#   launch/horovodrun-hosts.sh h1:4,h2:4 configs/smoke.toml compressor.name=topk
#
# The folder and its environment (`make setup`) lie at the same path on every host, a path without spaces. ssh asks
# for nothing: try `ssh h2 true`. INTERFACE is the one by which the hosts reach each other; without it the one by which
# this host reaches the last one. SSH_PORT is ssh's where its own settings do not say it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ ${1:-} =~ ^[^:,/]+:[0-9]+(,[^:,/]+:[0-9]+)*$ ]] ||
    { echo 'usage: launch/horovodrun-hosts.sh HOST:RANKS,HOST:RANKS... [CONFIG.toml [section.key=value ...]]' >&2; exit 2; }
hosts=$1
shift
[ $# -gt 0 ] || set -- configs/smoke.toml
ranks=0
for count in $(tr ',' '\n' <<<"$hosts" | cut -d : -f 2); do ranks=$((ranks + count)); done

last=${hosts##*,}
# A host that is this one answers by the loopback interface, which is right: nobody else is there.
address=$(getent ahostsv4 "${last%:*}" | awk 'NR == 1 { print $1 }' || true)
[ -n "$address" ] || { echo "horovodrun-hosts: ${last%:*}: no address is known for this name" >&2; exit 2; }
interface=${INTERFACE:-$(ip -o route get "$address" | sed -n 's/.* dev \([^ ]*\).*/\1/p')}

# The project's own environment; in an image the one that is on the path.
bin=$PWD/.venv/bin
[ -x "$bin/python" ] || bin=$(dirname "$(command -v python)")
port=()
[ -z "${SSH_PORT:-}" ] || port=(-p "$SSH_PORT")

# Each host is asked first: horovodrun's own check says less.
for host in $(tr ',' '\n' <<<"$hosts" | cut -d : -f 1); do
    ssh -o BatchMode=yes -o ConnectTimeout=10 "${port[@]}" "$host" test -x "$bin/horovodrun" -a -f "$PWD/train.py" ||
        { echo "horovodrun-hosts: $host: ssh fails, or $bin/horovodrun or $PWD/train.py is not there" >&2; exit 2; }
done

PATH=$bin:$PATH OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} \
    exec horovodrun -np "$ranks" -H "$hosts" ${SSH_PORT:+--ssh-port "$SSH_PORT"} --gloo --network-interface "$interface" \
    --gloo-timeout-seconds 120 python train.py "$@"
