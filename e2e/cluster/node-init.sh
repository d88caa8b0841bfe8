#!/bin/bash
# PID 1 of a node, in namespaces of its own: private views of /sys, of fixed paths and of some sysctls.
# node-init.sh DIR NAME CGROUP POINT..: the node's folder, its host name, its cgroup in every hierarchy, and the
# mount points that get a private copy.
set -eu
dir=$1 name=$2 cgroup=$3
shift 3
hostname "$name"

# A /sys of this network namespace, with the machine's cgroup mounts moved onto it.
mkdir -p "$dir/cgroup"
mount --rbind /sys/fs/cgroup "$dir/cgroup"
umount -l /sys
mount -t sysfs sysfs /sys
mount --move "$dir/cgroup" /sys/fs/cgroup

for point in "$@"; do
  mkdir -p "$dir/fs$point"
  mount --bind "$dir/fs$point" "$point"
done
mount --make-shared /var/lib/kubelet

# The kubelet writes these for the whole machine unless it finds the values that it wants.
mkdir -p "$dir/sysctl"
while read -r key value; do
  file=$dir/sysctl/${key//\//_}
  echo "$value" > "$file"
  mount --bind "$file" "/proc/sys/$key"
done <<'END'
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
END
# These belong to the network namespace.
sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1

for hierarchy in /sys/fs/cgroup/*/; do mkdir -p "$hierarchy/$cgroup"; done
for file in cpus mems; do # a new cpuset is empty
  cat "/sys/fs/cgroup/cpuset/cpuset.$file" > "/sys/fs/cgroup/cpuset/$cgroup/cpuset.$file"
done

touch "$dir/ready"
while :; do # bash reaps the orphans
  sleep 3600 &
  wait $!
done
