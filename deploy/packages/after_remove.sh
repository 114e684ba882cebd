#!/bin/sh
# The books and the user remain after a removal; dpkg's purge removes them. rpm has no purge.
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload
if [ "$1" = purge ]; then
  rm -rf /var/lib/gpuledger /etc/gpuledger
  if getent passwd gpuledger >/dev/null && command -v userdel >/dev/null; then userdel gpuledger; fi
fi
