"""Multiverso's Python binding on Tutti: the recorded numbers, its old surface, and what goes wrong."""
import importlib
import inspect
import json
import pathlib
import pickle
import re
import sys
import types

import pytest

from programs import together

multiverso = pytest.importorskip("multiverso", reason="PYTHONPATH lacks bindings/python/compat/src")
HERE = pathlib.Path(__file__).parent
COMPAT = HERE.parent.parent / "bindings" / "python" / "compat"
CASES = HERE.parent / "conformance" / "conformance.json"
SURFACE = {
    "multiverso": "init shutdown barrier workers_num worker_id server_id is_master_worker ArrayTableHandler "
                  "MatrixTableHandler",
    "multiverso.api": "init shutdown barrier workers_num worker_id server_id is_master_worker",
    "multiverso.tables": "TableHandler ArrayTableHandler MatrixTableHandler",
    "multiverso.utils": "convert_data",
    "multiverso.theano_ext.sharedvar": "MVSharedVariable mv_shared sync_all_mv_shared_vars",
    "multiverso.theano_ext.param_manager": "MVModelParamManager",
    "multiverso.theano_ext.lasagne_ext.param_manager": "LasagneParamManager",
    "multiverso.theano_ext.keras_ext.param_manager": "KerasParamManager",
    "multiverso.theano_ext.keras_ext.callbacks": "MVCallback",
}


def cases(*names):
    """The body of a program that runs cases of conformance.json: one init and shutdown for each."""
    def updater(mv, case, me):
        n = len(case["input"]["data"])
        table = mv.ArrayTableHandler(n, init_value=case["input"]["data"])
        mv.barrier()
        for add, expected in zip(case["input"]["adds"], case["expected"]["data_after_each_add"]):
            if me == add.get("worker", 0):
                table.add(add["delta"])
            mv.barrier()
            assert np.allclose(table.get(), expected, 0, case["tolerance"] or 1e-9), (table.get(), expected)
            mv.barrier()

    def array(mv, case, me):
        n = case["input"]["size"]
        table = mv.ArrayTableHandler(n)
        mv.barrier()
        for _ in range(case["input"]["iterations"]):
            table.add(range(1, n + 1))
            table.add(list(range(1, n + 1)), sync=True)
        mv.barrier()
        assert table.get().tolist() == case["expected"]["array"]

    def matrix(mv, case, me):
        rows, columns, ids, base = (case["input"][k] for k in ("rows", "cols", "row_ids", "base"))
        values = np.arange(base, rows * columns + base).reshape(rows, columns)
        table = mv.MatrixTableHandler(rows, columns)
        mv.barrier()
        for _ in range(case["input"]["iterations"]):
            table.add(values.ravel())
            table.add([values[i] for i in ids], ids)
        mv.barrier()
        expected = np.array(case["expected"]["full"])
        assert (table.get() == expected).all() and (table.get(ids) == expected[ids]).all()
        assert table.get().dtype == np.float32

    def delta_sync(mv, case, me):
        class Model:
            def __init__(self):
                self.weights = [np.array(case["input"]["init"], "f4") if me == 0 else np.zeros(2, "f4")]

            def get_weights(self):
                return self.weights

            def set_weights(self, arrays):
                self.weights = arrays

            def get_value(self):
                return self.weights[0].astype("f8")

            def set_value(self, array):
                assert array.dtype == np.float64
                self.weights = [array.astype("f4")]

        from multiverso.theano_ext.keras_ext.param_manager import KerasParamManager
        from multiverso.theano_ext.sharedvar import MVSharedVariable
        first, second = Model(), Model()
        manager, variable = KerasParamManager(first), MVSharedVariable(second)
        server = iter(case["expected"]["syncs"])
        for event in case["input"]["events"]:
            if me == event["worker"]:
                for model in first, second:
                    model.weights[0] += np.array(event.get("local_update", [0, 0]), "f4")  # in place, as Keras may
                if event["sync"]:
                    manager.sync_all_param()
                    variable.mv_sync()
            if event["sync"]:
                expected = next(server)["server"]
                mv.barrier()
                assert np.allclose(manager.tbh.get(), expected) and np.allclose(variable._mv_array.get(), expected)
            mv.barrier()
        manager.sync_all_param()
        variable.mv_sync()
        assert np.allclose(first.weights[0], case["expected"]["workers"][me])
        assert np.allclose(second.weights[0], case["expected"]["workers"][me])

    def rounds(mv, case, me):
        table = mv.ArrayTableHandler(3, init_value=np.full(3, case["input"]["initial"]))
        expected = [reply[2] for reply in case["expected"]["replies"] if reply[:2] == ["get", me]]
        for kind, worker, *value in case["input"]["arrivals"]:
            if worker == me and kind == "add":
                table.add(np.full(3, value[0]))
            elif worker == me and kind == "get":
                got = table.get()
                assert got.tolist() == [expected.pop(0)] * 3, got
        assert not expected

    def partition(mv, case, me):
        table = mv.ArrayTableHandler(case["input"]["size"], [5] * case["input"]["size"])
        mv.barrier()
        assert table.get().tolist() == [5] * case["input"]["size"]

    def moved(data, by=0.125):
        """Other numbers of the same kind. They are eighths, so that float32 adds them exactly."""
        if isinstance(data, list):
            return [moved(item, by + 0.125 * i) for i, item in enumerate(data)]
        return data + by

    def altered(case):
        """The case with other numbers in its input, and what the equation of its ref makes of these."""
        import copy
        case = copy.deepcopy(case)
        it = case["input"]
        for event in it.get("adds", []) + it.get("events", []):
            for key in {"delta", "local_update"} & set(event):
                event[key] = moved(event[key])
        for key in {"data", "init"} & set(it):
            it[key] = moved(it[key], 2.5)
        for key in {"iterations", "cols", "base"} & set(it):
            it[key] += 2
        if case["ref"] == "mv_sync_server":
            it["arrivals"] = [[*call[:2], *moved(call[2:])] for call in it["arrivals"]]
        if "size" in it:
            it["size"] += 3
        return {**case, "expected": equations(case["ref"], it)}

    def equations(ref, it):
        """What multiverso's tables come to, in plain numbers."""
        if ref == "mv_updater":  # the rule default
            deltas = np.array([it["data"]] + [add["delta"] for add in it["adds"]])
            return {"data_after_each_add": np.cumsum(deltas, 0)[1:].tolist()}
        if ref == "mv_array_binding_test":
            return {"array": [2 * (j + 1) * it["iterations"] * it["workers"] for j in range(it["size"])]}
        if ref == "mv_matrix_binding_test":
            values = np.arange(it["rows"] * it["cols"]).reshape(it["rows"], it["cols"]) + it["base"]
            values[it["row_ids"]] *= 2
            return {"full": (values * it["iterations"] * it["workers"]).tolist()}
        if ref == "mv_delta_sync":
            server, syncs, undone = np.array(it["init"]), [], [np.zeros(len(it["init"]))] * it["workers"]
            for event in it["events"]:
                k = event["worker"]
                undone[k] = undone[k] + event.get("local_update", 0)
                if event["sync"]:
                    server, undone[k] = server + undone[k], np.zeros(len(server))
                    syncs.append({"worker": k, "server": server.tolist()})
            return {"syncs": syncs, "workers": [server.tolist()] * it["workers"]}  # all sync once more at the end
        if ref == "mv_sync_server":  # a get sees as many adds of each worker as its own worker has made
            made = [[call[2] for call in it["arrivals"] if call[:2] == ["add", k]] for k in range(it["workers"])]
            replies, adds = [], [0] * it["workers"]
            for kind, k, *_ in it["arrivals"]:
                adds[k] += kind == "add"
                if kind == "get":
                    replies.append(["get", k, it["initial"] + sum(sum(each[:adds[k]]) for each in made)])
            return {"replies": replies}
        return {}  # mv_array_partition: the test says what comes

    def proven(case):
        """True if the equations give what is recorded."""
        got, recorded = equations(case["ref"], case["input"]), case["expected"]
        if "replies" in got:
            return sorted(got["replies"]) == sorted(reply for reply in recorded["replies"] if reply[0] == "get")
        return got == {key: recorded[key] for key in got}

    def program():
        import json
        import multiverso as mv
        run = {"mv_updater": updater, "mv_array_binding_test": array, "mv_matrix_binding_test": matrix,
               "mv_delta_sync": delta_sync, "mv_sync_server": rounds, "mv_array_partition": partition}
        with open(sys.argv[1]) as file:
            every = {case["id"]: case for case in json.load(file)["cases"]}
        for name in sys.argv[2:]:
            assert proven(every[name]), name
            for case in every[name], altered(every[name]):
                mv.init(sync=case["ref"] == "mv_sync_server")
                assert "workers" not in case["input"] or mv.workers_num() == case["input"]["workers"]
                assert mv.worker_id() == mv.server_id() and mv.is_master_worker() == (mv.worker_id() == 0)
                run[case["ref"]](mv, case, mv.worker_id())
                mv.shutdown()
            print(name)

    return together(program, updater, array, matrix, delta_sync, rounds, partition, moved, altered, equations,
                    proven), [str(CASES), *names]


# What no Python program of Multiverso can say, and where the case runs.
ELSEWHERE = {
    "mv-sgd mv-momentum mv-momentum-default-option mv-adagrad-literal mv-adagrad-intended mv-dcasgd mv-dcasgda":
        "init takes no updater: tests/c/unit_multiverso.c, tests/lua",
    "mv-array-part-1 mv-array-part-3 mv-array-part-4 mv-matrix-part-11x4 mv-matrix-part-10x4 mv-matrix-part-2x4 "
    "mv-matrix-part-1x4 mv-matrix-part-11x1": "no call says where a row lies: tests/lua",
    "mv-kv mv-sparse-old mv-sparse-new mv-filter-sparse mv-filter-dense mv-filter-zero mv-filter-clip":
        "arrays and matrices alone: tests/lua",
    "mv-aggregate mv-backup mv-ssp--1 mv-ssp-0 mv-ssp-1 mv-ssp-2": "no such call: tests/lua",
    "mv-flags mv-flags-dash": "init takes no flags: tests/c/unit_multiverso.c",
}
TWO = ["mv-default", "mv-py-matrix", "mv-lua-matrix", "mv-delta-sync", "mv-bsp", "mv-bsp-fast-add", "mv-bsp-finish",
       "mv-bsp-finish-cached", "mv-array-part-small"]
OTHERS = [(1, "mv-array-access"), (4, "mv-py-array")]


def test_cases_of_two(ranks):
    text, arguments = cases(*TWO)
    assert ranks(2, text, arguments=arguments) == ["\n".join(TWO) + "\n"] * 2


@pytest.mark.transports("shm")
@pytest.mark.parametrize("workers, name", OTHERS)
def test_case(ranks, workers, name):
    text, arguments = cases(name)
    assert ranks(workers, text, arguments=arguments) == [name + "\n"] * workers


def test_no_case_is_missing():
    listed = TWO + [name for _, name in OTHERS] + " ".join(ELSEWHERE).split()
    recorded = [case["id"] for case in json.loads(CASES.read_text())["cases"] if case["id"].startswith("mv-")]
    assert sorted(listed) == sorted(recorded)


def test_errors(ranks):
    """Wrong sizes and types, calls in the wrong order, results that live on, and a worker that dies."""
    def refused(mv):
        array, matrix = mv.ArrayTableHandler(10), mv.MatrixTableHandler(4, 3)
        raises(ValueError, "the table has 10 elements, and the data has 9", array.add, range(9))
        raises(ValueError, "the table has 12 elements, and the data has 11", matrix.add, range(11))
        raises(ValueError, "the list of 2 rows has 6 elements, and the data has 5", matrix.add, range(5), [0, 1])
        raises(ValueError, "row 4 is not in the table, which has rows 0 to 3", matrix.get, [0, 4])
        raises(ValueError, "row -1 is not in the table", matrix.add, range(3), [-1])
        raises(ValueError, "a table has 1 element at least", mv.ArrayTableHandler, 0)
        raises(TypeError, "data is None", matrix.add)
        raises(TypeError, "data is None", matrix.add, None, [0])
        raises(ValueError, "", array.add, ["no number"] * 10)
        raises(RuntimeError, "called before", mv.init)
        assert isinstance(array, mv.tables.TableHandler) and isinstance(matrix, mv.tables.TableHandler)
        mv.barrier()
        assert not array.get().any() and matrix.get([]).shape == (0, 3)
        mv.barrier()
        for _ in range(40):
            matrix.add(np.ones(6), np.array([1, 1]))
        mv.barrier()
        assert matrix.get()[:, 0].tolist() == [0, 160, 0, 0]
        return array

    def behind(mv):
        """Adds of 8 MiB that are under way when the program changes the data, and when it calls barrier."""
        table = mv.ArrayTableHandler(1 << 21)
        for _ in range(4):
            data = np.ones(1 << 21, "f4")
            table.add(data)
            data[:] = 9
        mv.barrier()
        assert (table.get() == 8).all()

    def large(mv):
        """Results of 16 MiB share their memory only when the program has dropped them."""
        table = mv.ArrayTableHandler(1 << 22)
        table.add(np.full(1 << 22, 2, "f4"))
        mv.barrier()
        first = table.get()
        kept, second = first[5:7], table.get()
        del first, second
        third, fourth = table.get(), table.get()
        third[:] = 7
        assert kept.tolist() == [4, 4] and fourth[6] == 4

    def program():
        import multiverso as mv
        for function in mv.barrier, mv.shutdown, mv.workers_num, mv.worker_id, mv.server_id:
            raises(RuntimeError, "call multiverso.init.. first", function)
        raises(RuntimeError, "call multiverso.init.. first", mv.ArrayTableHandler, 3)
        mv.init()
        table = refused(mv)
        behind(mv)
        large(mv)
        mv.barrier()
        if mv.worker_id() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        raises(tutti.Error, "rank 1", mv.barrier)
        raises(tutti.errors.RankDied, "rank 1", table.get)
        table.add(np.ones(10))
        raises(tutti.errors.RankDied, "push: rank 1", table.get)
        raises(tutti.Error, "rank 1", mv.shutdown)
        raises(RuntimeError, "call multiverso.init.. first", mv.barrier)
        print("ok")

    assert ranks(2, together(program, refused, behind, large), ends={1: -9})[0] == "ok\n"


@pytest.fixture
def alone():
    multiverso.init()
    yield
    multiverso.shutdown()


def test_callback(alone):
    """Every freq-th batch is a sync, and a model that is no float32 model is refused."""
    import numpy as np
    from multiverso.theano_ext.keras_ext.callbacks import MVCallback

    model = types.SimpleNamespace(weights=[np.ones((2, 3), "f4"), np.zeros(1, "f4")], sets=0)
    model.get_weights = lambda: model.weights

    def set_weights(arrays):
        model.weights, model.sets = arrays, model.sets + 1

    model.set_weights = set_weights
    callback = MVCallback(model, freq=3)
    for batch in range(7):
        model.weights[0] += 1
        callback.on_batch_end(batch)
    assert (callback.cur_n, model.sets) == (7, 3)
    assert callback.kpm.all_param_list.tolist() == [7] * 6 + [0]
    assert [w.shape for w in model.weights] == callback.kpm.shapes == [(2, 3), (1,)]
    with pytest.raises(ValueError, match="freq is 0"):
        MVCallback(model, freq=0)
    model.weights = [np.ones(3, "f4"), np.ones(3)]
    with pytest.raises(TypeError, match="parameter 1 of the model is float64, and must be float32"):
        MVCallback(model)
    model.weights = []
    with pytest.raises(ValueError, match="no parameters"):
        MVCallback(model)


def test_callback_of_keras(monkeypatch):
    """Where Keras is there, the callback is one of Keras."""
    from multiverso.theano_ext.keras_ext import callbacks

    base = type("Callback", (), {})
    with monkeypatch.context() as m:
        m.setitem(sys.modules, "keras", types.ModuleType("keras"))
        m.setitem(sys.modules, "keras.callbacks", types.SimpleNamespace(Callback=base))
        assert issubclass(importlib.reload(callbacks).MVCallback, base)
        m.setitem(sys.modules, "keras.callbacks", None)
        assert importlib.reload(callbacks).MVCallback.__bases__ == (object,)


def test_lasagne(alone, monkeypatch):
    import numpy as np
    from multiverso.theano_ext.lasagne_ext.param_manager import LasagneParamManager

    network = {"params": [np.arange(4, dtype="f4").reshape(2, 2)]}
    layers = types.SimpleNamespace(get_all_param_values=lambda it: it["params"],
                                   set_all_param_values=lambda it, params: it.update(params=params))
    monkeypatch.setitem(sys.modules, "lasagne", types.SimpleNamespace(layers=layers))
    manager = LasagneParamManager(network)
    network["params"][0] += 1
    manager.sync_all_param()
    assert network["params"][0].tolist() == [[1, 2], [3, 4]] and manager.network is network


class Shared:
    """A stand-in for a shared variable of Theano."""

    def __init__(self, value, name=None):
        self.value, self.name = value, name

    def get_value(self):
        return self.value

    def set_value(self, value):
        self.value = value


def test_sharedvar(alone, monkeypatch):
    import numpy as np
    from multiverso.theano_ext import sharedvar

    monkeypatch.setitem(sys.modules, "theano", None)
    with pytest.raises(ImportError, match="Theano is missing"):
        sharedvar.mv_shared(np.zeros(3))
    monkeypatch.setitem(sys.modules, "theano", types.SimpleNamespace(shared=Shared))
    w = sharedvar.mv_shared(value=np.zeros((2, 2)), name="W")
    assert isinstance(w, Shared) and sharedvar.mv_shared.shared_vars[-1]._svobj is w
    w.value = w.value + 3
    sharedvar.sync_all_mv_shared_vars()
    assert w.value.tolist() == [[3, 3], [3, 3]] and w.value.dtype == np.float64
    wrapped = sharedvar.mv_shared.shared_vars.pop()
    assert wrapped.name == "W" and wrapped.get_value() is w.value
    again = pickle.loads(pickle.dumps(wrapped))
    assert again.name == "W" and again.get_value().tolist() == w.value.tolist()
    with pytest.raises(RuntimeError, match="create an MVSharedVariable anew"):
        again.mv_sync()
    with pytest.raises(TypeError, match="a int has no get_value"):
        sharedvar.MVSharedVariable(3)


@pytest.mark.parametrize("module", SURFACE)
def test_surface(module):
    it = importlib.import_module(module)
    for name in SURFACE[module].split():
        found = getattr(it, name)
        assert found.__doc__, name
        for inner, member in vars(found).items() if inspect.isclass(found) else ():
            assert inner.startswith("_") or not callable(member) or member.__doc__, inner


def test_version():
    import tutti
    text = (COMPAT / "pyproject.toml").read_text()
    assert re.search('^version = "(.*)"$', text, re.M).group(1) == tutti.__version__
