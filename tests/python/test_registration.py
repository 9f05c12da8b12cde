"""Registered memory: until when it is, and what is refused."""
from programs import together


def test_registered(ranks):
    def program():
        import gc
        from tutti import errors

        job = tutti.init()
        me = job.rank

        # calls with registered memory, and with a part of it
        x = np.full(100000, me + 1.0, "f4")
        with tutti.register(x) as registration:
            assert isinstance(registration, tutti.Registration)
            job.allreduce(x)
            job.allreduce(x[:50000])
            assert x[0] == 6 and x[-1] == 3
            raises(errors.Exists, "overlap", tutti.register, x[10:20])
        job.allreduce(x)
        assert x[0] == 12 and x[-1] == 6

        # until it is closed, however often
        registration = tutti.register(x)
        registration.close()
        registration.close()
        tutti.register(x).close()

        # until the object ends; the result need not be kept, and keeps the object
        view = x[:]
        tutti.register(view)
        raises(errors.Exists, "overlap", tutti.register, x)
        del view
        gc.collect()
        registration = tutti.register(x[:])
        gc.collect()
        raises(errors.Exists, "overlap", tutti.register, x)
        del registration
        gc.collect()
        tutti.register(x).close()

        # of other memory: until the result ends
        b = bytearray(100)
        registration = tutti.register(b)
        raises(errors.Exists, "overlap", tutti.register, b)
        del registration
        gc.collect()
        with tutti.register(b):
            pass

        # what is refused
        raises(ValueError, "needs no registering", tutti.register, tutti.empty(10))
        raises(ValueError, "from 1 up", tutti.register, x[:0])
        raises(ValueError, "not dense", tutti.register, x[::2])

        # leaving unregisters all
        registration = tutti.register(x)
        job.barrier()
        job.leave()
        registration.close()
        del x
        gc.collect()

    ranks(2, together(program))
