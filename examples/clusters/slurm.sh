#!/bin/bash
# sbatch examples/clusters/slurm.sh --config configs/quickstart.yaml [section.key=value …]
#
# Slurm sends USR1 to the processes two minutes before the time is over: they save and end with status 75. The job then
# goes back into the queue and resumes. Start it in the repository's folder, on a file system that all nodes share.
#SBATCH --job-name=comera
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail

NAME="${NAME:-$SLURM_JOB_NAME}"   # the run's folder is RUNS/NAME; a requeued job has the same one
RUNS="${RUNS:-runs}"              # run.directory of FILE; one among the arguments comes before it
STARTS="${STARTS:-50}"            # an error that comes back at every start must end some day
for argument in "$@"; do [[ $argument == run.directory=* ]] && RUNS="${argument#*=}"; done
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# Since Slurm 22.05 srun does not take this number over from sbatch.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"

# One task is one process. Each finds its place and the first host in Slurm's variables. Processes that have lost
# another one end by themselves; --wait ends those that cannot.
srun --wait=120 "${PYTHON:-.venv/bin/python}" launch/pretrain.py "$@" run.name="$NAME"
status=$?

if [[ $status -eq 0 && ! -f $RUNS/$NAME/summary.json ]]; then
    echo "the processes ended with status 0, but $RUNS/$NAME/summary.json does not exist; see that all nodes share" \
        "$RUNS/, or set RUNS to run.directory" >&2
    status=1
fi
# 75: stopped, hung, or without another process. Above 128: ended by a signal, as from lack of memory.
if [[ ($status -eq 75 || $status -gt 128) && ${SLURM_RESTART_COUNT:-0} -lt $STARTS ]]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
