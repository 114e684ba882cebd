#!/bin/sh
# Boots systemd in a Debian root: systemd_machine.sh ROOT NAME
#
# In namespaces for all but users; its network is the loopback interface, its cgroups are below NAME in each
# hierarchy that systemd needs. Needs root. Nothing remains mounted afterwards.
set -eu
root=$1 groups=/sys/fs/cgroup
if [ "${INSIDE:-}" != 1 ]; then
  for group in $groups $groups/unified $groups/systemd $groups/memory $groups/pids; do
    if [ -e "$group/cgroup.procs" ]; then
      mkdir "$group/$2"
      echo $$ > "$group/$2/cgroup.procs"
    fi
  done
  INSIDE=1 exec unshare --pid --fork --kill-child --mount --uts --ipc --net --cgroup --propagation private "$0" "$@"
fi
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
for folder in run tmp dev; do mount -t tmpfs -o mode=0755 tmpfs "$root/$folder"; done
chmod 1777 "$root/tmp"
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
if [ -e $groups/cgroup.procs ]; then
  mount -t cgroup2 cgroup2 "$root$groups"
else
  mount -t tmpfs -o mode=0755 tmpfs "$root$groups"
  for group in unified systemd memory pids; do mkdir "$root$groups/$group"; done
  mount -t cgroup2 cgroup2 "$root$groups/unified"
  mount -t cgroup -o none,name=systemd cgroup "$root$groups/systemd"
  for group in memory pids; do mount -t cgroup -o $group cgroup "$root$groups/$group"; done
fi
ip link set lo up
exec chroot "$root" env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --show-status=no
