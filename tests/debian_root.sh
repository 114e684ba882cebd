#!/bin/sh
# Runs a command in a Debian root: debian_root.sh ROOT COMMAND [ARGUMENT...]
#
# /dev, /proc, /sys and /tmp are this machine's, and so is each folder in $BINDS (separated by colons). The
# working directory must be one of them or exist in the root. Needs root; nothing remains mounted afterwards.
set -eu
if [ "${INSIDE:-}" != 1 ]; then INSIDE=1 exec unshare --mount --propagation private "$0" "$@"; fi
unset INSIDE
root=$1
shift
for folder in /dev /proc /sys /tmp $(echo "${BINDS:-}" | tr : ' '); do
  mkdir -p "$root$folder"
  mount --rbind "$folder" "$root$folder"
done
here=$PWD
exec chroot "$root" /bin/sh -c 'cd "$0" && exec "$@"' "$here" "$@"
