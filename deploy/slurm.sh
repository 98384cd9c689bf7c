#!/usr/bin/env bash
# One worker a node under Slurm; docs/many-machines.md explains it. Submit it from the checkout, with main's flags:
#   sbatch --nodes=4 deploy/slurm.sh --gin_file=configs/digits_mlp.gin --workdir=/shared/runs/digits_mlp
# With --nodes=2-4 it takes the available nodes, and after a loss the remaining ones; below 2 it stays in the queue.
#SBATCH --job-name=tapeloop
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
# Add what your cluster requires: --partition, --account, --gpus-per-node.
set -uo pipefail

RESTARTS=${RESTARTS:-3} # a lost worker queues the job again only if it has been requeued less often than this

# This token admits processes to the workers' rendezvous. Only your own processes can read it from the environment.
TAPELOOP_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export TAPELOOP_TOKEN

set -- "$@" --gin_file=configs/runtime/multi_worker.gin
# The number of nodes that can share a step; Slurm gives one node no cluster, so launch makes it one.
workers=$(python -m trainers.launch.count --workers="$SLURM_JOB_NUM_NODES" -- "$@") || exit
if [ "$workers" -eq 1 ]; then set -- trainers.launch --workers=1 -- "$@"; else set -- trainers.main "$@"; fi
echo "$workers workers on $SLURM_JOB_NUM_NODES nodes"

# The multi_worker strategy asks Slurm for the step's tasks, through TensorFlow's resolver.
# --wait: seconds until Slurm ends the remaining tasks after the first has ended; workers notice the loss within 45.
srun --nodes="$workers" --ntasks="$workers" --export=ALL --wait=120 --kill-on-bad-exit=0 python -m "$@"
code=$? # the highest of all workers' exit codes: 128 and more is a signal

if [ "$code" -eq 75 ]; then
  echo "stopped and saved: queued again"
elif { [ "$code" -eq 6 ] || [ "$code" -ge 128 ]; } && [ "${SLURM_RESTART_COUNT:-0}" -lt "$RESTARTS" ]; then
  echo "a worker was lost (exit code $code): queued again, to go on from the last checkpoint"
else
  exit "$code"
fi
scontrol requeue "$SLURM_JOB_ID"
