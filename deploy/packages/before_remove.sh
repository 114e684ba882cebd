#!/bin/sh
# Before a removal, not before an upgrade. dpkg calls with a word, rpm with the number of versions that remain.
set -e
case "$1" in
  remove | 0)
    if [ -d /run/systemd/system ]; then
      systemctl --quiet disable --now gpuledger.service gpuledger-collect-every.service gpuledger-collect.timer \
        gpuledger-slurm.timer
    fi
    ;;
esac
