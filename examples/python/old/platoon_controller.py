"""The controller of platoon_worker.py, under Platoon's oldest names: says who trains, who measures, and when to stop.

    python3 platoon_controller.py                # waits for workers
    python3 platoon_worker.py --first            # in another terminal
    python3 platoon_worker.py                    # in as many more as you like, from when the first one is initialized

pip install ./bindings/python ./bindings/python/compat
"""
import argparse
import sys
import time

from channel import Lieutenant


class EarlyStopping(Lieutenant):
    """Stops after so many batches, or when the error has not fallen for `patience` measurements."""

    def __init__(self, max_mb, patience, valid_freq):
        Lieutenant.__init__(self)
        self.max_mb, self.patience, self.valid_freq = max_mb, patience, valid_freq
        self.batches = self.measured = self.bad = 0
        self.best, self.stop, self.began = 1.0, False, None

    def handle_control(self, req, worker_id):
        """Answers 'next', {'done': batches} and {'valid_err': error}."""
        answer = ""
        if req == "next":
            self.began = self.began or time.time()
            answer = "stop" if self.stop else self.train_or_valid()
        elif "done" in req:
            self.batches += req["done"]
        elif "valid_err" in req:
            answer = self.judge(req["valid_err"])
        if not self.stop and (self.batches >= self.max_mb or self.bad > self.patience):
            self.stop = True
            print("trained %d batches in %.1f s: error %.4f" % (self.batches, time.time() - self.began, self.best))
        return answer

    def train_or_valid(self):
        if self.batches < (self.measured + 1) * self.valid_freq:
            return "train"
        self.measured = self.batches // self.valid_freq
        return "valid"

    def judge(self, error):
        if error >= self.best:
            self.bad += 1
            return ""
        self.best, self.bad = error, 0
        print("best error so far: %.4f, after %d batches" % (error, self.batches), flush=True)
        return "best"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=5567)
    parser.add_argument("--max-mb", type=int, default=8000, help="batches of all workers together")
    parser.add_argument("--patience", type=int, default=10)
    parser.add_argument("--valid-freq", type=int, default=400, help="batches between two measurements")
    options = parser.parse_args()
    controller = EarlyStopping(options.max_mb, options.patience, options.valid_freq)
    controller.init_control(port=options.port)
    print("Lieutenant is ready", flush=True)
    sys.exit(controller.serve())
