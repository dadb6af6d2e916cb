#!/bin/bash
# Started on every host of an emulated cluster: on_each_host.sh FOLDER COMMAND WORDS...
# sshd runs on each, with the settings of launch/; on the first the command starts a job across them.
set -eu
folder=$1
shift
mkdir -p /run/sshd
# The mount namespace is the job's own, so this machine's own keys and settings stay as they are.
[ "$RANK" != 0 ] || mount --bind "$folder/ssh" "$HOME/.ssh"
until [ -f "$HOME/.ssh/id_rsa" ]; do sleep 0.1; done
sed "s|/home/wirebench/.ssh|$HOME/.ssh|; s|/home/wirebench/sshd.pid|$folder/sshd-$RANK.pid|" launch/sshd_config >"$folder/sshd-$RANK"
/usr/sbin/sshd -D -e -f "$folder/sshd-$RANK" 2>"$folder/sshd-$RANK.log" &
server=$!
trap 'kill $server' EXIT
if [ "$RANK" = 0 ]; then
    # The ranks that come are of another job than those that the cluster counts.
    unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME WIREBENCH_COUNTS
    until ssh -o BatchMode=yes h1 true; do sleep 0.2; done
    status=0
    "$@" || status=$?
    touch "$folder/over"
    exit $status
fi
until [ -f "$folder/over" ]; do sleep 0.2; done
