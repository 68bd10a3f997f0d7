#!/bin/bash
# On every host, with NODE_RANK = 0, 1, …, in the repository's folder, on a file system that all hosts share:
#
#     MASTER_ADDR=host0 NODES=2 NODE_RANK=0 examples/clusters/torchrun.sh --config configs/quickstart.yaml [key=value …]
#
# torchrun ends with status 1 whatever the status of its processes was. The run is finished if summary.json exists.
set -euo pipefail
: "${MASTER_ADDR:?set it to a name or address of the first host}"
: "${NODES:?set it to the number of hosts}"
: "${NODE_RANK:?set it to the number of this host, from 0}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# Between exec and torchrun, `.venv/bin/python launch/supervise.py --run DIRECTORY --` starts the run until it is finished.
exec "${TORCHRUN:-.venv/bin/torchrun}" --nnodes "$NODES" --node_rank "$NODE_RANK" --nproc_per_node "${PROCESSES:-gpu}" \
    --master_addr "$MASTER_ADDR" --master_port "${MASTER_PORT:-29500}" launch/pretrain.py "$@"
