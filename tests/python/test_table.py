"""Tables: dense, of rows, of keys; rules and their options; rounds; snapshots; fresh rows; saves; what is refused."""
import inspect

import numpy as np
import pytest
import tutti
from tutti import table, update
from tutti._native import ffi

from programs import together


def test_all_ranks(ranks, tmp_path):
    def dense(job, me):
        t = tutti.Table("dense", (4, 3), updater=tutti.sgd(0.5))
        assert t.dtype == "float32" and list(t.pull().ravel()) == [0] * 12
        job.barrier()
        if me == 0:
            t.assign(np.ones((4, 3), "f4"))
            t.push(np.ones((4, 3), "f4"))
            t.push_start(np.ones(12, "f4"), learning_rate=2, scale=0.25).wait()
        job.barrier()
        out = np.empty((4, 3), "f4")
        assert t.pull(out) is out and out.ravel().tolist() == [0] * 12
        assert t.pull_start().wait().shape == (4, 3)
        job.barrier()
        if me == 1:
            delta = np.full(12, -2, "f4")
            assert t.push_pull(delta, delta) is delta and delta[5] == 1
            assert t.push_pull_start(np.zeros(12, "f4")).wait()[3, 2] == 1
            t.assign_start(np.zeros(12, "f4")).wait()
        look = t.look()
        assert isinstance(look, tutti.TableInfo)
        assert (look.servers, look.workers, look.server, look.worker) == (2, 2, me, me)

        raises(ValueError, "takes float32 here, and the array has float64", t.push, np.zeros((4, 3)))
        raises(ValueError, "shape .4, 3. here, and the array has shape .3, 4.", t.push, np.zeros((3, 4), "f4"))
        raises(ValueError, "shape .4, 3. here", t.pull, np.zeros(11, "f4"))
        raises(ValueError, "read-only", t.pull, bytes(48))
        raises(ValueError, "no option .* called 'rate'", t.push, np.zeros(12, "f4"), rate=1)
        raises(tutti.errors.InvalidArgument, "beta1", t.push, np.zeros(12, "f4"), beta1=0.5)
        raises(tutti.errors.InvalidArgument, "worker", t.push, np.zeros(12, "f4"), worker=-3)
        raises(tutti.errors.Exists, "dense", tutti.Table, "dense", (4, 3))
        raises(tutti.errors.InvalidArgument, "no versions", t.snapshot)
        job.barrier()
        t.close()
        raises(ValueError, "'dense', closed> is closed", t.pull)

    def of_rows(job, me):
        t = tutti.Table.rows("rows", 10, (2, 2), "float64", tutti.adagrad(0.1), init=tutti.uniform(1, 2, 7),
                             fresh=True)
        start = t.pull()
        assert t.shape == start.shape == (10, 2, 2) and start.min() >= 1 and start.max() <= 2
        job.barrier()
        if me == 0:
            t.push_rows([1, 8], np.ones((2, 2, 2)))
            t.push_rows_start(np.array([1]), np.ones((1, 2, 2)), weight_decay=0).wait()
        job.barrier()
        if me == 1:
            rows, values = t.pull_fresh()
            assert rows.tolist() == [1, 8] and values.shape == (2, 2, 2)
            assert np.allclose(start[1] - values[0], 0.1 + 0.1 / 2 ** 0.5) and np.allclose(start[8] - values[1], 0.1)
            assert t.refresh_rows(range(10), start) == 0
            assert t.pull_fresh((np.zeros(3, "u8"), np.zeros((3, 2, 2))))[0].size == 0
        job.barrier()
        if me == 0:
            t.assign_rows((2,), np.full((1, 2, 2), 5.0))
            t.assign_rows_start((3,), np.full((1, 2, 2), 6.0)).wait()
        job.barrier()
        assert t.pull_rows(np.array([3, 2, 3], "u8"))[:, 1, 1].tolist() == [6, 5, 6]
        assert t.pull_rows_start([2]).wait().shape == (1, 2, 2)
        assert t.pull_rows([]).shape == (0, 2, 2)
        t.refresh_rows_start([2, 3], np.zeros((2, 2, 2))).wait()
        t.pull_fresh_start().wait()
        raises(tutti.errors.InvalidArgument, "10", t.pull_rows, [10])
        raises(ValueError, "from 0 to", t.pull_rows, [-1])
        raises(ValueError, "an array of uint64", t.pull_rows, np.array([1], "i4"))
        raises(ValueError, "shape .2, 2, 2. here", t.push_rows, [1, 2], np.zeros((3, 2, 2)))
        job.barrier()
        t.close()

    def of_keys(job, me):
        t = tutti.Table.keys("keys", 2, updater=tutti.assign(), init=tutti.normal(0.1), room=100)
        first = t.pull_rows([2 ** 64 - 1, 5])
        assert first.shape == (2, 2) and first.any()
        job.barrier()
        if me == 0:
            t.push_rows([5], np.full((1, 2), 9, "f4"))
        job.barrier()
        assert t.pull_rows([5, 2 ** 64 - 1]).tolist() == [[9, 9], first[0].tolist()]
        raises(NotImplementedError, "key", t.pull)
        raises(NotImplementedError, "key", t.push, np.zeros(2, "f4"))
        job.barrier()
        t.close()

    def rounds(job, me):
        t = tutti.Table("rounds", 6, mode="bsp", servers=[1])
        assert t.look().server == (None, 0)[me] and t.look().servers == 1
        for k in range(1, 4):
            t.push(np.full(6, me + 1, "f4"))
            assert t.pull().tolist() == [3 * k] * 6
        t.switch("ssp", staleness=1)
        t.push(np.ones(6, "f4"))
        t.switch("async")
        t.push(np.ones(6, "f4"))
        t.finish()
        raises(PermissionError, "rank", t.push, np.ones(6, "f4"))
        job.barrier()
        assert t.pull().tolist() == [13] * 6
        job.barrier()
        t.close()

        t = tutti.Table("snapshots", 4, "int32", snapshots=True, publish_pushes=1)
        if me == 0:
            t.push(np.arange(4, dtype="i4"))
            values, versions = t.snapshot()
            assert isinstance(versions, tutti.Versions)
            assert values.tolist() == [0, 1, 2, 3] and versions.oldest == versions.newest == 1 and versions.age < 60
            assert t.snapshot_start(np.zeros(4, "i4")).wait()[0].tolist() == [0, 1, 2, 3]
        job.barrier()
        t.close()
        t = tutti.Table("halves", 4, "float32", bf16_deltas=True)
        raises(ValueError, "takes bfloat16 here", t.push, np.zeros(4, "f4"))
        if me == 0:
            t.push(np.full(4, 0x3f80, "uint16"))  # 1 as bfloat16
        job.barrier()
        assert t.pull().tolist() == [1] * 4
        job.barrier()
        t.close()

    def saves(job, me):
        folder = sys.argv[1]
        t = tutti.Table("saved", 5, updater=tutti.momentum(1, momentum=0.5))
        if me == 0:
            t.push(np.ones(5, "f4"))
            t.save(folder)
            t.push(np.ones(5, "f4"))
            t.load(folder)
        job.barrier()
        assert t.pull().tolist() == [-1] * 5
        raises(LookupError, "no folder", t.load, folder + "/none")
        t.reopen()
        job.barrier()
        t.close()
        job.barrier()
        t = tutti.Table("saved", 5, updater=tutti.momentum(1, momentum=0.5), load=folder)
        assert t.pull_start().wait().tolist() == [-1] * 5
        job.barrier()
        dropped = [t.push_start(np.ones(5, "f4")) for _ in range(20)]
        del dropped, t

    def program():
        job = tutti.init()
        for part in dense, of_rows, of_keys, rounds, saves:
            part(job, job.rank)
            job.barrier()
        print("ok")

    text = together(program, dense, of_rows, of_keys, rounds, saves)
    assert ranks(2, text, arguments=[tmp_path]) == ["ok\n"] * 2


def test_death(ranks):
    """The rank with the server, the window and the requests is killed: what each call on its handles raises."""
    def program():
        job = tutti.init()
        w, t = tutti.Window("w", bytearray(8)), tutti.Table("t", 3, servers=[1])
        c, q = tutti.Controller("c"), tutti.Queue("q", 0, 8, depth=1)
        w.get(bytearray(8), 1 - job.rank)
        t.pull()
        if job.rank == 1:
            c.ask(b"a last request")
            os.kill(os.getpid(), signal.SIGKILL)
        heard = []
        c.serve(lambda request: heard.append(request.what))
        raises(ConnectionError, "rank 1", w.get, bytearray(8), 1)
        raises(tutti.errors.RankDied, "rank 1", t.push, np.zeros(3, "f4"))
        raises(tutti.errors.RankDied, "", t.pull_start().wait)
        raises(tutti.errors.RankDied, "", q.send, [b"batch"])
        raises(tutti.errors.RankDied, "rank 1", t.reopen)
        assert heard == ["asks", "gone"], heard
        for it in (w, t, c, q):
            it.close()
        print("ok")

    assert ranks(2, together(program), ends={1: -9})[0] == "ok\n"


RULES = [update.accumulate(), update.sgd(0.5), update.momentum(0.5), update.smoothed(0.5, 0.9), update.nesterov(0.5),
         update.adagrad(), update.rmsprop(), update.adam(), update.adamw(), update.dcasgd(), update.dcasgda(),
         update.elastic(), update.ftrl()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_rule(rule):
    """Each rule moves the values, or, of those that read the values, moves them toward what was pushed."""
    with tutti.Table("rule", 3, "float64", rule) as t:
        t.assign(np.ones(3))
        t.push(np.full(3, 0.25), worker=0)
        moved = t.pull() - 1
        expected = {"accumulate": 0.25, "sgd": -0.125, "momentum": -0.125, "smoothed": -0.0125, "nesterov": -0.2375,
                    "adagrad": -0.01 * 0.25 / (0.0625 + 1e-6) ** 0.5, "rmsprop": -0.01 * 0.25 / (0.025 + 1e-8),
                    "adam": -0.001, "adamw": -0.00101, "dcasgd": -0.0025, "dcasgda": -0.0025, "elastic": -0.375,
                    "ftrl": None}[rule.rule]
        if rule.rule == "ftrl":
            assert (moved < 0).all()
        else:
            assert np.allclose(moved, expected, rtol=1e-4), (moved, expected)


def test_options_of_rules():
    assert repr(tutti.adam(0.5, beta1=0.8)) == "tutti.adam(learning_rate=0.5, beta1=0.8)"
    assert repr(tutti.uniform(0, 1, seed=3)) == "tutti.uniform(0, 1, 3)"
    with pytest.raises(ValueError, match="no option .* 'betas'"):
        tutti.adam(0.5, betas=(0.8, 0.9))
    with pytest.raises(tutti.errors.InvalidArgument, match="rho"):
        tutti.Table("never", 3, updater=tutti.sgd(rho=0.5))
    assert update.push_options({}) == ffi.NULL
    given = update.push_options({"worker": 3, "scale": 0.5})
    assert (given.worker, given.scale) == (3, 0.5) and given.l1 != given.l1
    assert isinstance(tutti.normal(1), tutti.Init) and isinstance(tutti.sgd(), tutti.Updater)
    with tutti.Table("shared", 3, updater=tutti.adagrad(0.5, shared_state=True)):
        pass
    with tutti.Table("backup", 3, updater=tutti.dcasgda(backup_from_zero=True)):
        pass


@pytest.mark.parametrize("kind, sentence, config", [
    (ValueError, "a Python function cannot be a table's rule", {"updater": lambda piece: None}),
    (ValueError, "is made by a function of tutti.update", {"updater": "adam"}),
    (ValueError, "init is made by tutti.uniform or tutti.normal", {"init": tutti.normal}),
    (ValueError, "no consistency is called 'asp'", {"mode": "asp"}),
    (ValueError, "servers is empty", {"servers": []}),
    (ValueError, "no type of Tutti is called int16", {"dtype": "int16"}),
    (TypeError, "no keyword 'snapshot'", {"snapshot": True}),
    (tutti.errors.InvalidArgument, "backup", {"backup": 1}),
])
def test_refused(kind, sentence, config):
    with pytest.raises(kind, match=sentence):
        tutti.Table("never", 3, **config)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64"])
def test_types(dtype):
    with tutti.Table("types", (2, 2), dtype) as t:
        values = t.pull()
        assert values.dtype == ("uint16" if dtype == "bfloat16" else dtype) and values.shape == (2, 2)
        one = np.full((2, 2), 0x3f80, "uint16") if dtype == "bfloat16" else np.ones((2, 2), dtype)
        t.push(one)
        assert (t.pull() == one).all() and t.dtype == dtype


def test_shapes():
    with tutti.Table("numpy's number", np.int64(4)) as t:
        assert t.shape == (4,)
    with pytest.raises(ValueError, match="from 0 up"):
        tutti.Table.rows("never", -1, 2)


def test_fresh_rows_in_flat_memory():
    with tutti.Table.rows("flat", 10, (2, 2), init=tutti.uniform(1, 2), fresh=True) as t:
        rows, values = t.pull_fresh((np.zeros(4, "u8"), np.zeros(16, "f4")))
        assert rows.size == 4 and (values == t.pull_rows(rows).reshape(-1)).all()


def test_keywords():
    """The keywords that the type checker knows are those that there are."""
    named = set(inspect.signature(table._set).parameters) - {"c", "flags"} | set(table._FLAGS)
    assert set(table.TableConfig.__annotations__) == named
