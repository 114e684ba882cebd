#!/bin/sh
# After the installation or an upgrade. The service is not enabled: the one who installs decides.
set -e
getent group gpuledger >/dev/null || groupadd --system gpuledger
getent passwd gpuledger >/dev/null || useradd --system --gid gpuledger --home-dir /var/lib/gpuledger --no-create-home \
  --shell /usr/sbin/nologin --comment "GPU accounting" gpuledger
# What a run as root left before the first installation is the service's from now on.
[ "$(stat -c %u /var/lib/gpuledger 2>/dev/null)" != 0 ] || chown -hR gpuledger:gpuledger /var/lib/gpuledger
install -d -m 0700 -o gpuledger -g gpuledger /var/lib/gpuledger
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  # After an upgrade, run the new version; a stopped service remains stopped.
  systemctl try-restart gpuledger.service gpuledger-collect-every.service gpuledger-collect.timer \
    gpuledger-slurm.timer
fi
