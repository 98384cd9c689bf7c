#!/usr/bin/env bash
# Asynchronous training under Slurm, one process a node: the chief, then the servers, then workers. See
# docs/many-machines.md. Submit it from the checkout, with main's flags; SERVERS is the number of servers:
#   SERVERS=1 sbatch --nodes=4 deploy/slurm_servers.sh --gin_file=configs/digits_mlp.gin --workdir=/shared/runs/digits_mlp
#SBATCH --job-name=tapeloop
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
# Add what your cluster requires: --partition, --account, --gpus-per-node.
set -uo pipefail

RESTARTS=${RESTARTS:-3} # a lost chief or server queues the job again only if it has been requeued less often than this
SERVERS=${SERVERS:-1}

if [ "$SLURM_JOB_NUM_NODES" -lt $((SERVERS + 2)) ]; then
  echo "error: SERVERS is $SERVERS, and the job has $SLURM_JOB_NUM_NODES nodes: give --nodes=$((SERVERS + 2)) or more" >&2
  exit 2
fi

# This token admits processes to the run. Only your own processes can read it from the environment.
TAPELOOP_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export TAPELOOP_TOKEN SERVERS

# Jobs that share a machine must not share ports; these are below the ephemeral ports.
port=$((10000 + SLURM_JOB_ID % 20000))
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
listed() { printf "\"%s:$port\", " "$@" | sed 's/, $//'; }
CLUSTER="{\"chief\": [$(listed "${hosts[0]}")], \"ps\": [$(listed "${hosts[@]:1:SERVERS}")]"
CLUSTER="$CLUSTER, \"worker\": [$(listed "${hosts[@]:1+SERVERS}")]}"
export CLUSTER

# One task: its role by rank. A killed worker restarts, and the others continue meanwhile.
task() {
  local job=worker index=$((SLURM_PROCID - 1 - SERVERS)) code
  if [ "$SLURM_PROCID" -eq 0 ]; then job=chief index=0; elif [ "$index" -lt 0 ]; then job=ps index=$((SLURM_PROCID - 1)); fi
  export TF_CONFIG="{\"cluster\": $CLUSTER, \"task\": {\"type\": \"$job\", \"index\": $index}}"
  trap : TERM # the process gets it as well, and ends by itself
  while
    python -m trainers.main "$@"
    code=$?
    [ "$job" = worker ] && [ "$code" -ge 128 ]
  do sleep 5; done
  return "$code"
}

# --wait: seconds until Slurm ends the remaining tasks after the first has ended; tasks notice the loss within 60.
srun --ntasks="$SLURM_JOB_NUM_NODES" --export=ALL --wait=120 --kill-on-bad-exit=0 \
  bash -c "$(declare -f task); task \"\$@\"" task "$@" --gin_file=configs/runtime/parameter_server.gin
code=$? # the highest of all tasks' exit codes: 128 and more is a signal

if [ "$code" -eq 75 ]; then
  echo "stopped and saved: queued again"
elif { [ "$code" -eq 6 ] || [ "$code" -ge 128 ]; } && [ "${SLURM_RESTART_COUNT:-0}" -lt "$RESTARTS" ]; then
  echo "chief or server was lost (exit code $code): queued again, to go on from the last checkpoint"
else
  exit "$code"
fi
scontrol requeue "$SLURM_JOB_ID"
