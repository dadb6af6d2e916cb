#!/bin/sh
# One host of launch/compose.yaml, started as root in the image: host.sh key | sshd | run HOST:RANKS,...
set -eu
folder=$(dirname "$(dirname "$(readlink -f "$0")")")
key=${KEY_FOLDER:-/key}
user=${HOST_USER:-wirebench}
ssh=$(getent passwd "$user" | cut -d : -f 6)/.ssh

make_key() {
    [ -f "$key/id_rsa" ] || ssh-keygen -q -t ed25519 -N '' -C wirebench -f "$key/id_rsa"
    cp "$key/id_rsa.pub" "$key/authorized_keys"
}

install_key() {
    install -d -m 700 -o "$user" "$ssh"
    install -m 600 -o "$user" "$key/id_rsa" "$key/id_rsa.pub" "$key/authorized_keys" "$ssh"
}

# Packets queue for 50 ms at most; a burst is what the rate carries in 4 ms, and never below one of 64 KB.
limit_link() {
    [ -z "${LINK:-}" ] || tc qdisc replace dev "${INTERFACE:-eth0}" root tbf rate "$LINK" burst 64kb latency 50ms ||
        { echo "host.sh: the link cannot be limited to $LINK; it takes NET_ADMIN and a rate such as 100mbit" >&2; exit 2; }
}

start_sshd() { su "$user" -c "exec /usr/sbin/sshd -De -f ${SSHD_CONFIG:-/home/wirebench/sshd_config}"; }

case ${1:-} in
    key) make_key ;;
    sshd) install_key && limit_link && start_sshd ;;
    run)
        install_key
        limit_link
        start_sshd & # ranks of this host are started by ssh, too
        # shellcheck disable=SC2086,SC2016 # CONFIG is a config and its overrides; $1 is the inner shell's
        exec su "$user" -c 'cd "$1" && shift && exec bash launch/horovodrun-hosts.sh "$@"' sh "$folder" "$2" ${CONFIG:-configs/smoke.toml}
        ;;
    *) echo 'usage: host.sh key | sshd | run HOST:RANKS,...' >&2; exit 2 ;;
esac
