"""Gossip: rounds against the equation, a model of the library's, choices, the config file, and a dead peer."""
import pytest


def test_rounds(ranks):
    def program():
        import numpy as np, tutti
        from tutti.gossip import Look, Mix
        job = tutti.init()
        me, other = job.rank, 1 - job.rank
        x = [np.full((2, 2), float(me)), np.full(3, me, "i8")]
        g = tutti.Gossip("given", x, value=0, timeout=20)
        g.publish(me + 0.5)                      # a peer that has published nothing yet is no peer of the round
        g.mix()
        assert (x[0] == me).all() and (x[1] == me).all()
        g.value = 0.75
        assert g.value == 0.75
        job.barrier()
        g.publish(me + 0.5)
        job.barrier()
        mix: Mix = g.mix(1.0)
        assert mix.peer == other and mix.factor == 0.75 and mix.why == "" and mix.peer_loss == other + 0.5, mix
        assert (x[0] == 0.25 * me + 0.75 * other).all() and (x[1] == other).all(), x
        g.value = 0.25
        job.barrier()
        x[0][:] = me
        g.publish()
        job.barrier()
        out = [np.empty((2, 2)), np.empty(3, "i8")]
        mix = g.fetch(out)
        assert mix.peer == other and (out[0] == other).all() and (x[0] == me).all()
        job.barrier()
        g.publish()
        job.barrier()
        op = g.mix_start()
        try:
            g.publish()
            raise SystemExit("a mix is under way")
        except tutti.errors.UnderWay:
            pass
        op.wait(20)
        x[0] += 1                                # a step meanwhile
        g.apply()
        job.barrier()                            # until here the peer reads what this rank has published
        assert (x[0] == 1 + 0.75 * me + 0.25 * other).all(), x
        look: Look = g.look()
        assert look.peers == 1 and look.published == 4 and look.clock > 0, look
        g.remove_peer(other)
        try:
            g.score(other)
            raise SystemExit("a removed peer has a score")
        except tutti.errors.NotOpen:
            pass
        g.publish()
        assert g.mix().peer is None
        g.add_peer(str(other))
        assert 10 <= g.score(other) <= 1000
        job.barrier()
        for bad in (lambda: g.model(), lambda: g.fetch([out[0]]), lambda: tutti.Gossip("way", x, way="pulls"),
                    lambda: tutti.Gossip("value", x, value=2)):
            try:
                bad()
                raise SystemExit("not refused")
            except ValueError as e:
                print(e)
        g.close()
        g.close()

    said = ranks(2, program)[0].splitlines()
    assert said[0].startswith("the program holds this model") and said[1].startswith("out has 1 tensors")
    assert said[2] == "no way of a gossip is called 'pulls': use pull, push, push_sum" and "from 0 to 1" in said[3]


def test_held(ranks):
    def program():
        import numpy as np, tutti
        job = tutti.init()
        me = job.rank
        g = tutti.Gossip("held", [((2, 3), "float32"), ((4,), "bfloat16")], timeout=20)
        _, then = g.model()
        assert then[0].shape == (2, 3) and then[1].dtype == np.uint16
        then[0][:], then[1][:] = me, 0
        g.publish()
        for value in (0, 0.5):                                      # in the first round the peer may be late
            job.barrier()
            now, then = g.model()
            assert (now[0] == me).all()
            g.value = value
            then[0][:], then[1][:] = now[0] + value * 2, 0
            mix = g.mix()
            if value == 0:
                g.publish()
        assert mix.peer == 1 - me
        _, then = g.model()
        assert (then[0] == 0.5 * (me + 1) + 0.5 * (1 - me)).all(), then[0]
        job.barrier()
        g.close()
        assert (then[0] == 0.5 * (me + 1) + 0.5 * (1 - me)).all()   # the array keeps the memory
        now = then = _ = None
        tutti.Gossip("held", [((1,), "float32")]).close()           # the name is free again

    ranks(2, program)


def test_choice(ranks):
    def program():
        import numpy as np, threading, tutti
        job = tutti.init()
        me = job.rank
        x, asked = np.full(4, float(me), "f4"), []

        def choose():
            asked.append(threading.get_ident())
            if len(asked) == 3:
                raise KeyError("no peer")
            return None if len(asked) == 2 else (me + 1) % job.size

        g = tutti.Gossip("own", x, choice=choose, timeout=20)
        job.barrier()
        g.publish()
        job.barrier()
        mix = g.mix()
        assert mix.peer == (me + 1) % job.size and asked == [threading.get_ident()], (mix, asked)
        g.publish()
        assert g.mix().peer is None
        try:
            g.publish()
            raise SystemExit("the exception is lost")
        except KeyError:
            pass
        assert g.mix().peer is None
        g.publish()
        assert g.mix().peer is not None
        job.barrier()
        g.close()

        g = tutti.Gossip("push", x, way="push_sum", choice="ring", weight=1.0)
        for i in range(20):
            g.publish()
            g.mix()
        total = [0]
        for i in range(500):                     # until all gifts are taken in: no weight is lost
            g.mix()
            total = job.allreduce(np.array([g.look().weight]))
            if total[0] == job.size:
                break
        assert total[0] == job.size, g.look()
        try:
            g.mix_start()
            raise SystemExit("a push is started")
        except tutti.errors.NotSupported:
            pass
        job.barrier()

    ranks(3, program)


@pytest.mark.transports("tcp")
def test_config_file(ranks, tmp_path):
    def program():
        import numpy as np, tutti
        x = np.zeros(4)
        with tutti.Gossip("file", x) as g:
            assert g.value == 0.125
        with tutti.Gossip("mine", x, value=0.5) as g:
            assert g.value == 0.5

    config = tmp_path / "tutti.conf"
    config.write_text("gossip: { value = 0.125; method = \"constant\"; };\n")
    ranks(1, program, env={"TUTTI_CONFIG": config})


@pytest.mark.transports("shm")
def test_dead_peer(ranks):
    def program():
        import numpy as np, os, time, tutti
        job = tutti.init()
        x = np.full(4, float(job.rank))
        g = tutti.Gossip("dead", x, timeout=20)
        if job.rank == 1:
            os._exit(7)
        while g.look().peers:
            time.sleep(0.01)
        g.publish()
        mix = g.mix()
        assert mix.peer is None and mix.why and (x == 0).all()

    ranks(2, program, ends={1: 7})
