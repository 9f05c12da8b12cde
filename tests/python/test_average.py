"""Gradients, ElasticAverage and Center: against their equations, with uneven steps, and what is refused."""
import pytest


def test_gradients(ranks):
    def program():
        import numpy as np, tutti
        job = tutti.init()
        me = job.rank
        a, b = np.zeros((2, 3), "f4"), np.zeros(1000, "f8")
        w = [np.full(5, me, "f4"), np.full(2, me, "i4")]
        with tutti.Gradients([a, b], bucket_bytes=1024) as g:
            assert g.tensors[0] is a
            g.synchronize(w)
            assert (w[0] == 0).all() and (w[1] == 0).all(), w
            for step in range(2 + me):  # rank 1 has one step more
                a[:], b[:] = me + 1, 10 * (me + 1)
                if step == 0:
                    assert g.average() == 2 and (a == 1.5).all() and (b == 15).all()
                elif step == 1:
                    g.ready(1)
                    g.ready(0)
                    started = g.average_start()
                    try:
                        g.sum()
                        raise SystemExit("a second end of the step")
                    except tutti.errors.UnderWay:
                        pass
                    started.wait(20)
                    assert g.apply() == 2 and (a == 1.5).all() and (b == 15).all()
                else:
                    assert g.average() == 1 and (a == 2).all(), a
                w[0][:] = 10 * me + step
            g.synchronize(w)
            assert (w[0] == 12).all(), w  # rank 1 has taken most steps
            a[:] = 1
            assert g.sum() == 2 and (a == 2).all()
            assert g.sum_start().wait(20) is None and g.apply() == 2 and (a == 4).all()
        print(repr(g))
        for bad in (g.sum, lambda: tutti.Gradients([np.zeros((4, 4), "f4")[:, 1]]),
                    lambda: tutti.Gradients([np.zeros(4, "i8")]), lambda: tutti.Gradients([])):
            try:
                bad()
                raise SystemExit("not refused")
            except ValueError as e:
                print(e)

    said = ranks(2, program)[1].splitlines()
    assert said[0] == "<tutti.Gradients, closed>"
    assert said[1] == "<tutti.Gradients, closed> is closed"
    assert "numpy.ascontiguousarray" in said[2] and "f32, f64, f16 or bf16" in said[3] and len(said) == 5


def test_gradients_as_they_come(ranks):
    def program():
        import math, numpy as np, tutti
        job = tutti.init()
        me = job.rank
        a, b = np.zeros(6, "f4"), np.zeros(6, "f4")
        g = tutti.Gradients([a, b], bucket_bytes=8)
        a[:], b[:] = me, me + 2
        started = g.average_start()
        seen = [(r, float((a, b)[r[0]][0])) for r in g.buckets()]
        assert seen == [(range(1, 2), 2.5), (range(0, 1), 0.5)], seen
        started.wait(20)
        assert g.apply() == 2
        other = [np.full(6, 1 + 2 ** -10, "f4"), np.zeros(6, "f4")]
        g.move(other)
        g.bf16()
        assert g.sum() == 2 and (other[0] == 2).all() and g.norm() == math.sqrt(24), other
        g.bf16(False)
        other[1][2] = math.nan
        assert math.isnan(g.norm())
        for bad in (lambda: g.move([a]), lambda: tutti.Gradients([a[me:]]), lambda: next(g.buckets())):
            try:
                bad()
                raise SystemExit("not refused")
            except ValueError as e:
                print(e)

    said = ranks(2, program)[0]
    assert "tensor 0 has 5 f32 on rank 1" in said and "and 6 f32 on rank 0" in said, said


@pytest.mark.transports("tcp")
def test_gradients_regroup(ranks):
    def program():
        import numpy as np, os, tutti
        job = tutti.init()
        me = job.rank
        x, w = np.full(4, me + 1.0), np.full(4, me * 1.0)
        g = tutti.Gradients(x)
        assert g.sum() == 3 and (x == 6).all()
        if me == 2:
            for rank in range(2):
                job.recv(bytearray(1), rank)
            os._exit(7)
        done = job.send_start(b"x", 2)           # rank 2 ends once all have the sum
        for _ in range(2):  # the error stays until regroup
            try:
                g.sum()
                raise SystemExit("no error")
            except ConnectionError as e:
                assert "rank 2" in str(e), e
        assert done.done()
        g.regroup(job.shrink())
        g.synchronize([w])
        x[:] = me + 1
        assert g.average() == 2 and (x == 1.5).all()

    ranks(3, program, ends={2: 7})


def test_elastic(ranks):
    def program():
        import numpy as np, tutti
        job = tutti.init()
        me, n = job.rank, job.size
        x = [np.full((2, 2), 1.0 + me), np.full(3, 2.0 - me, "f4")]
        ea = tutti.ElasticAverage(x, tau=2, alpha=0.25)
        assert ea.tau == 2 and ea.alpha == 0.25 and np.isnan(ea.distance)
        ea.synchronize()
        assert ea.params[1] is x[1]
        assert (x[0] == 1).all() and (x[1] == 2).all()
        values, c = np.ones(n), 1.0          # of x[0] by hand, for all ranks
        for step in range(5):
            x[0] += me + 1
            values += np.arange(n) + 1
            averaged = ea.step(measure=True)
            assert averaged == (step % 2 == 1), step
            if averaged:
                d = 0.25 * (values - c)
                assert np.allclose(ea.distance, abs(values[me] - c) * 2), (ea.distance, values, c)
                values, c = values - d, c + d.sum()
            assert np.allclose(x[0], values[me]), (x[0], values)
        out = [np.empty((2, 2)), np.empty(3, "f4")]
        assert ea.center(out) is not None and np.allclose(out[0], c) and np.allclose(ea.center()[0], c)
        ea.set_center([np.full((2, 2), 7.0), out[1]])
        assert (ea.center()[0] == 7).all()
        ea.synchronize_center()
        assert (ea.center()[0] == 7).all()
        ea.set(3)
        assert ea.tau == 3 and ea.alpha is None
        before = x[0].copy()
        for start in (ea.synchronize_center_start, ea.synchronize_start):
            op = start()
            op.wait(20)
            ea.apply()
        assert (job.allgather(x[0])[0] == x[0]).all() and before.shape == x[0].shape
        try:
            ea.set(me + 1)
            raise SystemExit("different tau")
        except tutti.errors.InvalidArgument:
            pass
        for bad in ([np.empty((2, 2))], [np.empty(4), np.empty(4, "f4")]):
            try:
                ea.center(bad)
                raise SystemExit("another model")
            except ValueError as e:
                print(e)
        ea.close()
        ea.close()

    assert ranks(2, program)[0].splitlines() == [
        "out has 1 tensors, and the model has 2",
        "tensor 1 of out has 4 elements of float32, and the model's has 3 of float32"]


def test_center(ranks):
    def program():
        import math, numpy as np, pathlib, tutti
        from tutti.center import Schedule
        job = tutti.init()
        me, n = job.rank, job.size

        x = [np.full(4, 1.0 + me, "f4"), np.full((2, 2), 3.0, "f4")]
        with tutti.Center.easgd("easgd", x, tau=2, alpha=0.5, momentum=0.5, snapshots=True) as c:
            assert (x[0] == 1).all(), x           # the first worker's
            ahead = [np.empty_like(y) for y in x]
            c.move([np.ones(4, "f4"), np.zeros((2, 2), "f4")], 2.0)
            c.ahead(ahead)
            assert (x[0] == -1).all() and (ahead[0] == -2).all(), (x, ahead)   # v = -2
            for rank in range(n):                 # by turns: the exchange is deterministic
                if rank == me:
                    x[0][:] = 3
                    assert not c.step() and c.step(measure=True)
                    assert (x[0] == (2 if me == 0 else 2.5)).all(), x[0]       # the center was 1, then 2
                    assert math.isclose(c.distance, 4 if me == 0 else 2, rel_tol=1e-6), c.distance
                job.barrier()
            assert c.schedule() == Schedule(2, 0.5, None, None), c.schedule()
            c.set(tau=1, alpha=1.0)
            assert c.schedule().tau == 1 and c.schedule().alpha == 1
            job.barrier()
            c.pull()
            assert (x[0] == 2.5).all()
            job.barrier()
            if me == 1:
                x[0][:] = 9
                c.assign()
                op = c.exchange_start()
                op.wait(20)
                c.apply()
                c.exchange()
            job.barrier()
            versions: tutti.Versions = c.read(ahead)
            while not (ahead[0] == 9).all():      # a version comes each 100 ms
                versions = c.read(ahead)
            assert versions.newest > 0 and versions.age >= 0
            job.barrier()

        x = np.zeros(1000, "f4")
        with tutti.Center.downpour("downpour", x, tau=1, average=True, servers=[1]) as c:
            x += me + 1
            assert c.step() and (x == 1.5).all()
            c.set(tau=2)
            job.barrier()
        with tutti.Center.asgd("asgd", x, tau=1, bf16=True, workers=[0]) as c:
            if me == 0:
                x += 1
                c.exchange()
                assert (x == 2.5).all()
            job.barrier()
        with tutti.Center.outer("outer", x, steps=1, learning_rate=1.0, momentum=0.0) as c:
            assert c.params[0] is x
            x[:] = 2 + me * 2                     # the first worker's 2.5 minus the mean of (2.5 - 2, 2.5 - 4)
            assert c.step() and np.allclose(x, 3), x
            job.barrier()
        with tutti.Center.own("own", x, tutti.accumulate(), tau=1) as c:
            x[:] = me + 1                         # the center was 3
            job.barrier()
            if me == 0:
                assert c.step() and (x == 4).all()
            job.barrier()
            values = np.empty(1000, "f4")
            table = c.table
            assert repr(table) == "<the table of <tutti.Center 'own'>>"
            assert (table.pull(values) == 4).all() and table.look().servers == n, table.look()
            assert table.shape == (1000,) and table.dtype == "float32"
            table.close()
            assert (c.table.pull(values) == 4).all()
            job.barrier()
        try:
            table.pull(values)
            raise SystemExit("a closed center")
        except ValueError as e:
            assert "is closed" in str(e), e
        try:
            tutti.Center.own("merge", x, tutti.accumulate(), merge=max)
            raise SystemExit("a function")
        except ValueError as e:
            assert "center.table.push_pull" in str(e)
        for bad in (lambda: tutti.Center.own("rule", x, "sgd"), lambda: tutti.Gradients(x).regroup(3),
                    lambda: tutti.Center.easgd("load", x, load=pathlib.Path("/a\0b"))):
            try:
                bad()
                raise SystemExit("not refused")
            except ValueError as e:
                assert type(e) is ValueError, e
        for bad in (lambda: tutti.Center.asgd("mixed", [np.zeros(2), np.zeros(2, "f4")]),
                    lambda: tutti.Center.easgd("tau", x, tau=0)):
            try:
                bad()
                raise SystemExit("not refused")
            except tutti.Error as e:
                print(type(e).__name__)

    assert ranks(2, program) == ["NotSupported\nInvalidArgument\n"] * 2


def test_alpha():
    import tutti
    assert tutti.elastic_alpha(9) == pytest.approx(0.1) and tutti.elastic_alpha_max(1) == pytest.approx(2 / 3)


def test_goes_on(ranks):
    """What a rank holds beside its params is saved, loaded by new objects, and refused by objects of another kind."""
    def program():
        import numpy as np, pathlib, tutti
        job = tutti.init()
        file = {name: pathlib.Path("%s-%d.safetensors" % (name, job.rank)) for name in "egcs"}
        x = np.arange(6.0) + job.rank
        def elastic():
            return tutti.ElasticAverage([x], tau=2, alpha=0.25)
        def go_on(e, steps):
            for _ in range(steps):
                x[:] += 0.1 * (job.rank + 1)
                e.step()
        with elastic() as e:
            e.synchronize_center()
            go_on(e, 3)
            e.save(file["e"])
            half = x.copy()
            go_on(e, 4)
            center, end = e.center()[0].copy(), x.copy()
        x[:] = half
        with elastic() as e:
            e.load(file["e"])
            go_on(e, 4)
            assert (x == end).all() and (e.center()[0] == center).all(), (x, end)
        with tutti.Gradients([np.zeros(3)]) as g:
            g.save(file["g"])
            g.load(file["g"])
            try:
                g.load(file["e"])
                raise SystemExit("not refused")
            except ValueError as err:
                assert "no state of gradients: it is of an elastic average" in str(err), err
        with tutti.Center.downpour("c", x, tau=2) as c:
            c.step()
            c.save(file["c"])
            c.load(file["c"])
            assert c.step()
            job.barrier()
        with tutti.Gossip("s", [x]) as g:
            g.publish(1)
            g.save(file["s"])
        with tutti.Gossip("again", [x]) as g:
            g.load(file["s"])
            assert g.look().clock == 1
            job.barrier()

    ranks(2, program)
