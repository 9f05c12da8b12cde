"""Stands for torchrun, and sets a rank's variables as torchrun does: torch 1.13's does not start under Python 3.11."""
import os
import subprocess
import sys

from conftest import free_address


def main(ranks, program):
    address, port = free_address().split(":")
    started = [subprocess.Popen([sys.executable, program], env=dict(
        os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR=address, MASTER_PORT=port)) for rank in range(ranks)]
    sys.exit(max(process.wait() for process in started))


assert sys.argv[1:3] == ["--standalone", "--nproc_per_node"]
main(int(sys.argv[3]), sys.argv[4])
