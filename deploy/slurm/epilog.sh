#!/bin/sh
# Slurm's Epilog on the GPU nodes: saves this node's receipt of the job for `gpuledger slurm update --from DIR`.
# Without GPULEDGER_RECEIPTS=DIR in /etc/default/gpuledger-slurm it does nothing; it is not needed where
# `gpuledger slurm update` reads the API of the nodes.
#
# An Epilog that fails drains the node, and a slow one holds it. So this script starts its work in the
# background, in its own session because slurmd kills the Epilog's process group, and exits with 0 in every
# case, also if it cannot start a process.
trap 'exit 0' EXIT HUP INT TERM

save_receipt() {
    configuration=${GPULEDGER_SLURM_CONF:-/etc/default/gpuledger-slurm}
    # shellcheck source=/dev/null
    [ ! -r "$configuration" ] || . "$configuration"
    directory=${GPULEDGER_RECEIPTS:-} job=${SLURM_JOB_ID:-} node=${SLURMD_NODENAME:-}
    # Jobs without a GPU have no receipt.
    [ -n "$directory" ] && [ -n "$job" ] && [ -n "$node" ] || return
    [ -n "${CUDA_VISIBLE_DEVICES:-}${GPU_DEVICE_ORDINAL:-}${SLURM_JOB_GPUS:-}" ] || return
    case $job in *[!0-9]*) return ;; esac
    case $node in */*) return ;; esac
    # Of a requeued job, only the last run counts. Ranges begin with quarters of an hour.
    since=${SLURM_JOB_START_TIME:-}
    case $since in 0* | *[!0-9]* | ???????????*) since= ;; esac
    [ -z "$since" ] || since=$(date -u -d "@$((since / 900 * 900))" +%Y-%m-%dT%H:%MZ 2>/dev/null) || since=
    # The last interval of the job is booked by the readings after its end.
    sleep "${GPULEDGER_RECEIPT_DELAY:-5}"
    file=$directory/$job.$node.json
    umask 077
    # 32 MiB, in blocks: whatever goes wrong does not fill the disk.
    ulimit -f 65536
    if timeout -k 5 60 "${GPULEDGER:-gpuledger}" receipt "job:$job" ${since:+--since "$since"} --format json >"$file.tmp" 2>"$file.err"; then
        mv -f "$file.tmp" "$file"
    else
        reason=$(head -c 300 "$file.err" 2>/dev/null)
        logger -t gpuledger-epilog "no receipt of job $job: ${reason:-it was stopped after 60 s, or $directory cannot be written}"
    fi
    rm -f "$file.tmp" "$file.err"
}

# slurmd sets no PATH.
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH
if [ "${1:-}" = detached ]; then
    # It is in its own session now: this lets the Epilog exit, which waits for the end of its output.
    exec >/dev/null
    save_receipt
else
    : "$(setsid "$0" detached </dev/null 2>/dev/null &)"
fi
exit 0
