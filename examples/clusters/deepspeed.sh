#!/bin/bash
# On one host, in the repository's folder, on a file system that all hosts share; all hosts let it in by ssh without a
# password, and pdsh is installed here:
#
#     examples/clusters/deepspeed.sh --config configs/quickstart.yaml [section.key=value …]
#
# Ends with the status of the processes: 0 finished, 2 a mistake, 75 start again.
set -euo pipefail

# Without these, ssh waits for ever for a host that is gone, and deepspeed with it.
export PDSH_SSH_ARGS_APPEND="${PDSH_SSH_ARGS_APPEND:-} -o ServerAliveInterval=15 -o ServerAliveCountMax=4"

# Other variables reach the processes by lines NAME=value of the file .deepspeed_env in this folder.
# A supervisor that starts a run again until it is finished goes between exec and deepspeed.
exec "${DEEPSPEED:-.venv/bin/deepspeed}" --hostfile "${HOSTFILE:-examples/clusters/hostfile}" \
    --master_port "${MASTER_PORT:-29500}" launch/pretrain.py "$@"
