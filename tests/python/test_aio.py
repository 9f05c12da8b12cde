"""await of operations, and changes of ranks, in event loops."""


def test_aio(ranks):
    def program():
        import asyncio
        import os
        import signal
        import threading
        import time
        import numpy as np
        import tutti
        job = tutti.init()
        rank, peer = job.rank, 1 - job.rank
        descriptors = len(os.listdir("/proc/self/fd"))

        async def exchange(tag):
            x, got = np.full(4, rank, "f4"), bytearray(8)
            for _ in range(30):
                if tag == 0:
                    assert await job.allreduce_start(x, op="average") is x
                receive = job.recv_start(got, peer, tag)
                await asyncio.sleep(0)
                await job.send_start(b"12345678", peer, tag)
                assert (await receive).bytes == 8 and await receive == receive.wait()
            return x[0]

        # Many tasks, in three loops at once.
        averages = []

        async def several(first):
            averages.append((await asyncio.gather(*(exchange(first + i) for i in range(3))))[0])

        threads = [threading.Thread(target=asyncio.run, args=(several(3 * i),)) for i in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert sorted(averages) == sorted([0.5, rank, rank]) and not job._readers

        # A task that is cancelled: the operation ends, and then the memory is the program's.
        async def cancelled():
            x = bytearray(8)
            operation = job.recv_start(x, peer, 100)
            try:
                await asyncio.wait_for(operation, 0.05)
                raise AssertionError
            except asyncio.TimeoutError:
                assert isinstance(operation.exception(), tutti.errors.Cancelled)
                x.append(1)
            # Two tasks wait for one operation, and one is cancelled.
            operation = job.recv_start(bytearray(8), peer, 100)
            tasks = [asyncio.ensure_future(exchange_one(operation)) for _ in range(2)]
            await asyncio.sleep(0.01)
            tasks[0].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(e) for e in results] == [asyncio.CancelledError, tutti.errors.Cancelled]

        # A loop that waits sleeps, also when other operations have ended before.
        async def idle():
            waiting = asyncio.ensure_future(exchange_one(job.recv_start(bytearray(8), peer, 103)))
            await exchange(20)
            used = time.thread_time()
            await asyncio.sleep(0.2)
            used = time.thread_time() - used
            waiting.cancel()
            assert used < 0.02, used

        async def exchange_one(operation):
            return await operation

        asyncio.run(cancelled())
        asyncio.run(idle())

        # Ctrl-C ends the loop, and cancels what its tasks wait for.
        def interrupt(operation):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                asyncio.run(exchange_one(operation))
                raise AssertionError
            except KeyboardInterrupt:
                assert isinstance(operation.exception(), tutti.errors.Cancelled)

        interrupt(job.recv_start(bytearray(8), peer, 100))

        # A loop that ends in the middle of a wait, or is closed by hand, holds nobody up.
        loop = asyncio.new_event_loop()
        task = loop.create_task(exchange_one(job.recv_start(bytearray(8), peer, 101)))
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        assert asyncio.run(exchange(50)) == rank
        task.get_coro().close()
        del task
        job.barrier()

        # Errors; the job's end; changes.
        async def last():
            watch, changes = job.watch(), []

            async def note():
                async for change in watch:
                    changes.append((change.rank, change.what))

            noting = asyncio.ensure_future(note())
            await job.barrier_start()
            if rank == 0:
                waiting = asyncio.ensure_future(exchange_one(job.recv_start(bytearray(8), peer, 102)))
                await asyncio.sleep(0.01)
                threading.Thread(target=job.leave).start()
                try:
                    await waiting
                    raise AssertionError
                except tutti.Error:
                    pass
            else:
                try:
                    await job.barrier_start()
                    raise AssertionError
                except tutti.errors.RankLeft as e:
                    assert e.rank == 0
                while not changes:
                    await asyncio.sleep(0.01)
                assert changes == [(0, "left")]
                job.leave()
            await noting
            assert [change async for change in watch] == []  # the job was left before

        asyncio.run(last())
        assert len(os.listdir("/proc/self/fd")) < descriptors

    ranks(2, program, timeout=30)
