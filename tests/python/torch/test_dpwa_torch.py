"""dpwa's adapter: the page's loop, the parameters that it averages, and the example on four nodes."""
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import clean_environment, kill
from test_dpwa import free_ports, until, write_config
from test_fashion import write

torch = pytest.importorskip("torch")
EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "python" / "old" / "dpwa_fashion.py"

# The loop of dpwa's page, with the indentation that the page has lost.
PAGE = """\
import sys, torch
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
name, config_file = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(ord(name[-1]))
net = torch.nn.Linear(1, 1).double()
x = torch.linspace(-1, 1, 8 * 150).double()[torch.randperm(8 * 150)].view(150, 8, 1)
training_samples = [(batch, 3 * batch - 1) for batch in x]
loss = 1.0

def train_batch(batch):
    net.zero_grad()
    loss = ((net(batch[0]) - batch[1]) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.2 * p.grad
    return loss

# Create a connection to the cluster
# the config file contains the list of named nodes in the cluster, and name identifies which node are we.
conn = DpwaPyTorchAdapter(net, name, config_file)
# Training loop
for batch in training_samples:
    # 1. Updates the local server with the latest model parameters
    # 2. Initiate an asynchronous fetch parameters request to a random peer
    conn.update_send(loss)
    # Train the model as usual
    loss = train_batch(batch)
    # 1. Wait for the fetch parameters request to complete (blocking)
    # 2. Average the model's parameters with the peer's parameters
    conn.update_wait(loss)
print("%.2f %.2f" % (net.weight.item(), net.bias.item()))
"""


def run_nodes(folder, names, command):
    """Runs the nodes by hand. Returns what each has said."""
    outputs, processes = [folder / (name + ".out") for name in names], []
    try:
        for name, output in zip(names, outputs):
            with open(output, "wb") as file:
                processes.append(subprocess.Popen([sys.executable, "-u", *command(name)], stdout=file, stderr=file,
                                                  start_new_session=True, env=clean_environment()))
        assert until(lambda: all(process.poll() is not None for process in processes), 100)
    finally:
        for process in processes:
            kill(process)
    said = [output.read_text() for output in outputs]
    assert all(process.returncode == 0 for process in processes), said
    return said


def test_page(tmp_path):
    (tmp_path / "page.py").write_text(PAGE)
    config = write_config(tmp_path / "c", free_ports("w1", "w2"), divergence_threshold=0.2)
    said = run_nodes(tmp_path, ["w1", "w2"], lambda name: [str(tmp_path / "page.py"), name, str(config)])
    assert all(text.endswith("3.00 -1.00\n") for text in said), said


def test_average(tmp_path):
    """The parameters of two nodes: many types, the equation, and buffers that stay."""
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter

    class Net(torch.nn.Module):
        def __init__(self, value, *shape):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(2)
            self.kinds = torch.nn.ParameterList([torch.nn.Parameter(torch.full(shape, value, dtype=kind)) for kind in (
                torch.float16, torch.bfloat16, torch.float32)] + [torch.nn.Parameter(torch.tensor(value))])
            self.norm.running_mean.fill_(value)

    config = write_config(tmp_path / "c", free_ports("w1", "w2"), constant=0.25)
    nets = Net(1.0, 3, 2), Net(5.0, 3, 2)
    conns = [DpwaPyTorchAdapter(net, name, config) for net, name in zip(nets, ("w1", "w2"))]
    held = list(nets[0].parameters())

    def is_averaged():
        conns[1].update_send(torch.tensor(1.0))
        conns[0].update_send(1.0)
        conns[0].update_wait(torch.tensor(1.0))
        return nets[0].kinds[0][0, 0] != 1

    try:
        assert until(is_averaged)
        assert all((param == 2).all() and param is was for param, was in zip(nets[0].kinds, held[2:]))
        assert (nets[0].norm.running_mean == 1).all() and all(p.requires_grad and p.grad is None for p in held)
        conns[1]._conn.close()
        conns[1] = DpwaPyTorchAdapter(Net(7.0, 2, 3), "w2", config)
        with pytest.raises(ValueError, match="the peer's module has other parameters"):
            until(lambda: is_averaged() and False)
        conns[0]._net = torch.nn.Linear(1, 1)
        with pytest.raises(ValueError, match="take 64 bytes, and took"):
            conns[0].update_send(1.0)
    finally:
        for conn in conns:
            conn._conn.close()


def test_example(tmp_path):
    write(tmp_path, "train", 1280)
    write(tmp_path, "t10k", 200)
    names = ["w1", "w2", "w3", "w4"]
    config = write_config(tmp_path / "c", free_ports(*names), divergence_threshold=0.2)
    said = run_nodes(tmp_path, names, lambda name: [str(EXAMPLE), "--name", name, "--config-file", str(config),
                                                    "--data", str(tmp_path), "--epochs", "2"])
    accuracies = [float(re.findall(r"epoch 2: .* accuracy (\S+)", text)[0]) for text in said]
    assert min(accuracies) > 0.9, said
