"""Publications: versions that one rank publishes and others read, of arrays and in place, and what is refused."""
import pytest

import tutti
from conftest import all_or

from programs import together


def test_versions(ranks):
    def program():
        job = tutti.init()
        w, b = np.zeros((3, 5), "f4"), np.zeros((), "i8")
        if job.rank == 0:
            publisher = tutti.Publisher("model", {"w": w, "b": b}, buffers=4, hold=2)
            info = publisher.look()
            assert info == tutti.PublisherInfo(0, info.generation, 0, 0, 0, 0) and info.generation
            job.barrier()
            w[:], b[()] = 1, 10
            publisher.publish(7, b"seven")
            publisher.wait(7, timeout=20)
            raises(tutti.errors.TimedOut, "", publisher.wait, 8, timeout=0)
            raises(tutti.errors.InvalidArgument, "7", publisher.publish, 7)
            raises(tutti.errors.InvalidArgument, "4096", publisher.publish, 8, bytes(4097))
            w[:] = 2
            publisher.publish(8)
            assert publisher.look().version == 8 and publisher.look().published == 2, publisher.look()
            assert publisher.look().readers == 1
            job.barrier()
            publisher.close()
            publisher.close()
            raises(ValueError, "closed> is closed", publisher.publish, 9)
        else:
            reader = tutti.Reader("model")
            assert reader.weights == [tutti.Weight("w", (3, 5), "float32"), tutti.Weight("b", (), "int64")]
            assert reader.newest() == 0
            raises(tutti.errors.TimedOut, "", reader.fetch, timeout=0)
            raises(tutti.errors.Exists, "model", tutti.Reader, "model")
            job.barrier()
            fetched = reader.fetch()
            assert isinstance(fetched, tutti.Fetched) and fetched.meta == b"seven"
            assert fetched.version == 7 and fetched.generation and 0 <= fetched.age < 20
            assert (fetched.weights["w"] == 1).all() and fetched.weights["b"] == 10 and fetched.overtaken == 0

            # into the same arrays; some tensors alone
            out = fetched.weights
            newer = reader.fetch(7, out=out)
            assert newer.version == reader.newest() == 8 and newer.meta == b"" and newer.weights["w"] is out["w"]
            assert (out["w"] == 2).all()
            some = reader.fetch(only=["b"]).weights
            assert list(some) == ["b"] and some["b"] == 10
            flat = bytearray(60)
            reader.fetch(out={"w": memoryview(flat).cast("f")})
            assert (np.frombuffer(flat, "f4") == 2).all()

            # refused
            raises(ValueError, "no tensor 'c': it has w, b", reader.fetch, only=["c"])
            raises(ValueError, "float32, and the array has float64", reader.fetch, out={"w": np.zeros((3, 5))})
            raises(ValueError, "6 elements", reader.fetch, out={"w": np.zeros(6, "f4")})
            raises(ValueError, "read-only", reader.fetch, out={"b": bytes(8)})
            raises(ValueError, "`only` or `out`", reader.fetch, only=["w"], out=out)
            job.barrier()
            while True:
                try:
                    reader.fetch(timeout=0)
                except tutti.errors.Stale:
                    break
            reader.close()
            raises(ValueError, "closed> is closed", reader.newest)
        job.barrier()

    ranks(2, together(program))


def test_in_place(ranks):
    def program():
        job = tutti.init()
        if job.rank == 0:
            shapes = [("w", ((2, 3), "float32")), ("half", ((4,), "bfloat16")), ("one", ((), "uint8"))]
            publisher = tutti.Publisher("model", shapes)
            for version in range(1, 6):
                with publisher.writing(version, b"%d" % version) as arrays:
                    arrays["w"][:], arrays["half"][:], arrays["one"][()] = version, 0x3f80, version
                assert not arrays
            try:
                with publisher.writing(6) as arrays:
                    kept = arrays["w"]
                    raise KeyError
            except KeyError:
                pass
            assert publisher.look().version == 5
            raises(tutti.errors.InvalidArgument, "", publisher.publish, 6)  # there are no arrays to copy from
            job.barrier()
            job.barrier()
            publisher.close()
            kept[:] = 9                 # memory that an array uses stays
        else:
            job.barrier()
            reader = tutti.Reader("model")
            fetched = reader.fetch()
            assert fetched.version == 5 and fetched.meta == b"5" and (fetched.weights["w"] == 5).all()
            assert fetched.weights["half"].dtype == "u2" and (fetched.weights["half"] == 0x3f80).all()
            assert fetched.weights["one"] == 5
            job.barrier()

    ranks(2, together(program))


def test_shards(ranks):
    def program():
        job = tutti.init()
        if job.rank < 2:
            w, part = np.zeros(1000 + job.rank, "f4"), tutti.Shard(job.rank, 2, wait=0)
            raises(ValueError, "one group", tutti.Publisher, "m", {"w": w}, shard=part, boot="127.0.0.1:4711")
            raises(tutti.errors.InvalidArgument, "shard", tutti.Publisher, "m", {"w": w}, shard=tutti.Shard(2, 2))
            raises(ValueError, "tutti.Shard of 2 or more", tutti.Publisher, "m", {"w": w}, shard=tutti.Shard(0, 1))
            raises(ValueError, "tutti.Shard of 2 or more", tutti.Publisher, "m", {"w": w}, shard=(0, 2))
            if job.rank == 1:           # shard 1 opens when shard 0 is open
                job.barrier()
            publisher = tutti.Publisher("model", {"w%d" % job.rank: w}, generation=1, shard=part)
            if job.rank == 0:
                job.barrier()
            job.barrier()
            w[:] = 1
            publisher.publish(1)
            job.barrier()
            w[:] = 2
            if job.rank == 0:
                publisher.publish(2)
                w[:] = 3
                publisher.publish(3)    # two versions ahead: half of three buffers, rounded up
                raises(tutti.errors.Busy, "shard", publisher.publish, 4)
                assert publisher.look().version == 3
            job.barrier()
            job.barrier()               # the reader looks
            if job.rank == 1:
                publisher.publish(2)
            job.barrier()
            job.barrier()
            publisher.close()
        else:
            job.barrier()
            reader = tutti.Reader("model")
            assert reader.weights == [tutti.Weight("w0", (1000,), "float32", 0),
                                      tutti.Weight("w1", (1001,), "float32", 1)], reader.weights
            job.barrier()
            job.barrier()
            job.barrier()
            fetched = reader.fetch()
            assert fetched.version == 1 and all((w == 1).all() for w in fetched.weights.values())
            job.barrier()
            job.barrier()
            fetched = reader.fetch(1)
            assert fetched.version == 2 and all((w == 2).all() for w in fetched.weights.values())
            job.barrier()

    ranks(3, together(program))


def test_deltas(ranks):
    def program():
        job = tutti.init()
        w = np.arange(20000, dtype="f4")
        if job.rank == 0:
            publisher = tutti.Publisher("model", {"w": w}, deltas=0.5)
            for version in range(1, 6):
                w[::1000 + version] += version
                publisher.publish(version)
                assert (publisher.look().delta_bytes > 0) == (version > 1)
                job.barrier()
                job.barrier()
            raises(tutti.errors.InvalidArgument, "deltas", tutti.Publisher, "other", {"w": w}, deltas=-1)
        else:
            reader = tutti.Reader("model")
            job.barrier()
            fetched = reader.fetch()
            assert fetched.deltas == 0 and fetched.bytes_read == 80000
            raises(ValueError, "`held` with `out`", reader.fetch, held=1)
            job.barrier()
            job.barrier()
            job.barrier()
            job.barrier()               # two versions later
            fetched = reader.fetch(1, out=fetched.weights, held=1)
            assert fetched.version == 3 and fetched.deltas == 2 and fetched.bytes_read < 10000, fetched
            for version in range(1, 4):
                w[::1000 + version] += version
            assert (fetched.weights["w"] == w).all()
            job.barrier()
            job.barrier()
            fetched.weights["w"][5] = 3  # no longer what was fetched
            fetched = reader.fetch(3, out=fetched.weights, held=3)
            w[::1004] += 4
            assert fetched.deltas == 0 and fetched.mismatched == 1 and (fetched.weights["w"] == w).all()
            job.barrier()
            job.barrier()
            job.barrier()
        job.barrier()

    ranks(2, together(program))


def test_readers_of_a_job_of_their_own(ranks):
    """Two processes without a job between them: the publisher's has one rank, and the reader comes in and goes."""
    def program():
        del os.environ["TUTTI_SIZE"]
        boot = os.environ.pop("TUTTI_BOOT")
        x = np.zeros(5000)
        if os.environ.pop("TUTTI_RANK") == "0":
            job = tutti.init()
            raises(ValueError, "a Publisher takes `boot`", tutti.Publisher, "x", {"x": x}, boot=boot, group=job)
            raises(ValueError, "buffers", tutti.Publisher, "x", {"x": x}, buffers=2, boot=boot)  # and left that job
            dropped = tutti.Publisher("x", {"x": x}, boot=boot).group.job
            raises(ValueError, "closed", dropped.barrier)  # the object has left the job that it had made
            publisher = tutti.Publisher("x", {"x": x}, boot=boot)
            assert publisher.readers() == 0 and publisher.group.job is not job
            count, end = 0, time.time() + 20
            while time.time() < end and not (count > 3 and publisher.readers() == 0):
                count += publisher.readers()
                x += 1
                publisher.publish(int(x[0]))
                time.sleep(0.005)
            assert count > 3
            with publisher.writing(10 ** 9) as arrays:
                kept = arrays["x"]
            publisher.close()
            publisher.close()
            kept[:] = 1                 # memory that an array uses stays
        else:
            reader = tutti.Reader("x", boot=boot)

            async def read():
                seen = []
                async for fetched in reader.versions():
                    x = fetched.weights["x"]
                    assert (x == fetched.version).all() and fetched.version > (seen or [0])[-1]
                    seen.append(fetched.version)
                    if len(seen) == 20:
                        return
            __import__("asyncio").run(read())
            reader.close()
            raises(ValueError, "closed> is closed", reader.newest)

    ranks(2, together(program))


def test_fleet(ranks):
    """Readers join and leave in waves while a trainer publishes; of each five, one is killed. No version is torn, and
    behind each wave the trainer has the descriptors and the memory that it had behind the first ones."""
    def program():
        WAVES, boot, fleet = 4, os.environ.pop("TUTTI_BOOT"), int(os.environ.pop("TUTTI_SIZE")) - 1
        me = int(os.environ.pop("TUTTI_RANK"))

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2 ** 20

        def publish_until_gone(wave):
            readers, end = fleet - (fleet // 5 if wave == WAVES - 1 else 0), time.time() + 60
            while publisher.readers() or sum(name.startswith("read%d." % wave) for name in os.listdir(".")) < readers:
                assert time.time() < end, (publisher.look(), os.listdir("."))
                x[:] += 1
                publisher.publish(int(x[0]))
                time.sleep(0.001)

        if me == 0:
            x, level = np.zeros(1 << 17), []
            publisher = tutti.Publisher("x", {"x": x}, boot=boot)
            for wave in range(WAVES):
                open("wave%d" % wave, "w").close()
                publish_until_gone(wave)
                time.sleep(0.5)
                level.append((len(os.listdir("/proc/self/fd")), resident()))
            open("wave%d" % WAVES, "w").close()
            print(level)
            descriptors, memory = zip(*level)
            assert max(descriptors[1:]) <= min(descriptors[1:]) + 1 and memory[-1] < memory[1] + 4, level
            publisher.close()
            return
        for wave in range(WAVES):
            while not os.path.exists("wave%d" % wave):
                time.sleep(0.02)
            version = 0
            with tutti.Reader("x", boot=boot) as reader:
                out = reader.empty()
                for _ in range(10):
                    version = reader.fetch(version, out=out).version
                    assert (out["x"] == version).all()
                open("read%d.%d" % (wave, me), "w").close()
                if wave == WAVES - 2 and me % 5 == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                if me % 2:
                    reader.group.job.leave()    # before close(), as a process that ends

    n = all_or(40, 10)
    print(ranks(n + 1, together(program), ends={rank: -9 for rank in range(5, n + 1, 5)}, timeout=200)[0])


def test_refused():
    with pytest.raises(ValueError, match="9 dimensions"):
        tutti.Publisher("deep", {"x": ((1,) * 9, "float32")})
    with pytest.raises(tutti.errors.InvalidArgument, match="buffers|3"):
        tutti.Publisher("few", {"x": bytearray(4)}, buffers=2)
    with pytest.raises(ValueError, match="not dense"):
        import numpy
        tutti.Publisher("strided", {"x": numpy.zeros(4)[::2]})
