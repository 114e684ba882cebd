#!/usr/bin/env bash
# First process in the mount and UTS namespaces of one Slurm node, with a separate cgroup:
#
#   unshare --mount --uts --cgroup node.sh FOLDER NAME GPUS
#
# Its host name is NAME, /etc/slurm is FOLDER/etc, /dev has the device files of GPUS GPUs, and the cgroup
# hierarchies begin at its own cgroup, as on a separate machine.
set -euo pipefail
folder=$1 name=$2 gpus=$3

hostname "$name"
for hierarchy in /sys/fs/cgroup/*; do
  # Symbolic links (cpu -> cpu,cpuacct) name the same hierarchy again.
  [ ! -L "$hierarchy" ] && [ -e "$hierarchy/cgroup.procs" ] || continue
  umount -l "$hierarchy"
  case ${hierarchy##*/} in
    unified) mount -t cgroup2 none "$hierarchy" ;;
    systemd) mount -t cgroup -o none,name=systemd none "$hierarchy" ;;
    *) mount -t cgroup -o "${hierarchy##*/}" none "$hierarchy" ;;
  esac
done

mkdir "$folder/dev"
mount -t tmpfs none "$folder/dev"
for file in null zero full random urandom tty; do cp -a "/dev/$file" "$folder/dev/"; done
for place in pts shm; do
  mkdir "$folder/dev/$place"
  mount --bind "/dev/$place" "$folder/dev/$place"
done
ln -s pts/ptmx "$folder/dev/ptmx"
ln -s /proc/self/fd "$folder/dev/fd"
for minor in $(seq 0 $((gpus - 1))); do mknod -m 666 "$folder/dev/nvidia$minor" c 195 "$minor"; done
mknod -m 666 "$folder/dev/nvidiactl" c 195 255
mount --rbind "$folder/dev" /dev
mount --bind "$folder/etc" /etc/slurm

touch "$folder/ready"
exec sleep infinity
