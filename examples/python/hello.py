"""Every rank says who it is, in order: tutti run -n 4 python3 hello.py"""
import os
import socket

import tutti

job = tutti.init()
mine = ("%s, process %d" % (socket.gethostname(), os.getpid())).encode().ljust(100)
all_of = job.gather(mine)
for rank in range(job.size if job.rank == 0 else 0):
    print("hello from rank %d of %d on" % (rank, job.size), all_of[100 * rank:][:100].decode().strip())
