#!/usr/bin/env bash
# two_hosts.sh DIR COMMAND…: run COMMAND on the first of two hosts, head (10.89.0.1) and node1 (10.89.0.2).
#
# A host is a set of namespaces: its own network, name, /tmp/ray and /etc/hosts. Call it in new user,
# network, mount, process and name namespaces; all processes of both hosts end with it. A file
# DIR/hosts/NAME holds the id of a process of that host, whose namespaces `enter_host` enters.
set -euo pipefail
dir=$1
shift
mkdir -p "$dir/hosts" /tmp/ray
printf '127.0.0.1 localhost\n10.89.0.1 head\n10.89.0.2 node1\n' >"$dir/etc_hosts"
# Nothing answers there, and the kernel says so at once: with a server that cannot be reached, gRPC would
# wait for the answer about a second kind of address although /etc/hosts has the first.
printf 'nameserver 127.0.0.1\n' >"$dir/resolv.conf"

# set_up NAME ADDRESS: give the host of this process its name, its network and its own files.
set_up() {
  hostname "$1"
  ip link set lo up
  ip addr add "$2/24" dev eth0
  ip link set eth0 up
  ip route add default dev eth0 # Ray finds a node's address with the default route.
  mount -t tmpfs tmpfs /tmp/ray
  mount --bind "$dir/etc_hosts" /etc/hosts
  mount --bind "$dir/resolv.conf" /etc/resolv.conf
}

ip link add dev eth0 type veth peer name veth1
unshare --net --uts --mount sleep infinity &
other=$!
until [[ $(readlink "/proc/$other/ns/net") != "$(readlink /proc/self/ns/net)" ]]; do sleep 0.05; done
ip link set veth1 netns "$other" name eth0
export -f set_up
dir=$dir nsenter --target "$other" --net --uts --mount bash -c 'set -e; set_up node1 10.89.0.2'
set_up head 10.89.0.1
printf '%s\n' "$$" >"$dir/hosts/head"
printf '%s\n' "$other" >"$dir/hosts/node1"
code=0
"$@" || code=$?
kill "$other"
exit "$code"
