#!/bin/sh
# Slurm's TaskEpilog on the GPU nodes: appends the receipt to the output of a batch job, as the user of the job.
# A user turns it off with `export GPULEDGER_RECEIPT=off` before sbatch.
#
# Of a job on several nodes, this is the part of its first node: `gpuledger slurm receipt JOB` has all. The job
# still runs here, so the last second is missing. The script exits with 0 in every case, after 10 s at most.
trap 'exit 0' EXIT HUP INT TERM

PATH=/usr/local/bin:/usr/bin:/bin:${PATH:-}
export PATH
configuration=${GPULEDGER_SLURM_CONF:-/etc/default/gpuledger-slurm}
# shellcheck source=/dev/null
[ ! -r "$configuration" ] || . "$configuration"
# Steps of srun have a number; the batch script has none. Only its stderr is the output of the job.
if [ -z "${SLURM_STEP_ID:-}" ] && [ -n "${SLURM_JOB_ID:-}" ] && [ "${GPULEDGER_RECEIPT:-}" != off ]; then
    timeout -k 2 "${GPULEDGER_RECEIPT_TIMEOUT:-10}" "${GPULEDGER:-gpuledger}" receipt "job:$SLURM_JOB_ID" </dev/null >&2 2>/dev/null
fi
exit 0
