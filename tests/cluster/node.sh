#!/usr/bin/env bash
# First process in the test node's mount and PID namespaces. It redirects writes of the kubelet, containerd and their
# shims below /var/lib, /var/log, /run and /proc/sys to FOLDER. When this process exits, all containers are killed.
#
#   unshare --mount --pid --fork --kill-child --mount-proc node.sh FOLDER
set -euo pipefail
folder=$1

for place in var/lib var/log run; do mount --bind "$folder/$place" "/$place"; done
# The kubelet sets these for the whole machine unless they already have these values.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
  kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file=$folder/sysctl-$(basename "${setting%=*}")
  echo "${setting#*=}" >"$file"
  [ ! -e "/proc/sys/${setting%=*}" ] || mount --bind "$file" "/proc/sys/${setting%=*}"
done

touch "$folder/ready"
while :; do # wait reaps orphaned processes
  sleep 3600 &
  wait $! || true
done
