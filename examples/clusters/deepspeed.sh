#!/bin/bash
# On one host, in the repository's folder, on a file system that all hosts share; all hosts let it in by ssh without a
# password, and pdsh is installed here:
#
#     examples/clusters/deepspeed.sh --config configs/quickstart.yaml [section.key=value …]
#
# Ends with the highest status of the processes and of ssh: 0 finished, 2 a mistake, 75 start again, 255 start again when
# ssh reaches the host that was lost.
set -euo pipefail

# Without these, ssh waits for ever for a host that is gone, and deepspeed with it. An option that stands before counts.
export PDSH_SSH_ARGS_APPEND="${PDSH_SSH_ARGS_APPEND:-} -o ServerAliveInterval=15 -o ServerAliveCountMax=4"

# Other variables reach the processes by lines NAME=value of the file .deepspeed_env in this folder.
# Between exec and deepspeed, `.venv/bin/python launch/supervise.py --run DIRECTORY --` starts the run until it is finished.
exec "${DEEPSPEED:-.venv/bin/deepspeed}" --hostfile "${HOSTFILE:-examples/clusters/hostfile}" \
    --master_port "${MASTER_PORT:-29500}" launch/pretrain.py "$@"
