"""One party of a CrypTen 0.4.1 run of an AutoReP Program: `python party.py FD`, started by `autorep bench peers`.

The same network, numbers and kept ReLUs as ours: convolutions with secret weights (batch norms folded), kept ReLUs
gathered into one call per layer and scattered back, every other element through its channel's quadratic. The
quadratics' coefficients are public here, which is cheaper than ours (secret) and favours CrypTen.

Messages, as in `autorep.bench.processes`: {"do": "start", …} answers with torch's instruction set; {"do": "run"} with
this party's share of the logits; {"do": "count"} runs once more with CrypTen's own communication statistics on;
{"do": "stop"}.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from autorep.bench import processes
from autorep.program import files, ir


def import_crypten():
    """CrypTen imports a module of torch.onnx that has moved since; give it the new one under the old name."""
    import torch.onnx._internal.torchscript_exporter.registration as registration

    sys.modules["torch.onnx._internal.registration"] = registration
    import crypten

    return crypten


class Network:
    """A Program's operations on CrypTen's encrypted tensors."""

    def __init__(self, crypten, program: ir.Program) -> None:
        self.program = program
        self.secret, self.public, self.index = {}, {}, {}
        for op in program.ops:
            for name in op.parameter_names:
                key = f"{op.name}.{name}"
                if key not in program.parameters:
                    continue
                value = torch.from_numpy(np.array(program.parameters[key], np.float32))
                if isinstance(op, ir.Activation):
                    self.public[key] = value.reshape(1, -1, *[1] * (len(op.shape) - 1))
                else:
                    if name == "bias" and isinstance(op, ir.Conv):
                        value = value.reshape(1, op.shape[0], *(op.shape[1:] if value.dim() > 1 else (1, 1)))
                    self.secret[key] = crypten.cryptensor(value, src=0)
            if isinstance(op, ir.Activation):
                self.index[op.name] = torch.from_numpy(np.array(op.kept, np.int64))

    def __call__(self, image):
        values = {self.program.input.name: image}
        for op in self.program.ops[1:]:
            values[op.name] = self.step(op, [values[name] for name in op.inputs])
        return values[self.program.output.name]

    def step(self, op: ir.Op, inputs: list):
        x = inputs[0]
        match op:
            case ir.Conv():
                y = x.conv2d(self.secret[f"{op.name}.weight"], stride=op.stride[0], padding=op.padding[0])
                return y + self.secret[f"{op.name}.bias"]
            case ir.Linear():
                return x.matmul(self.secret[f"{op.name}.weight"].t()) + self.secret[f"{op.name}.bias"]
            case ir.Requantize():
                return x
            case ir.Add():
                return inputs[0] + inputs[1]
            case ir.SumPool():
                return x.sum(3).sum(2).reshape(len(x), *op.shape)
            case ir.Flatten():
                return x.reshape(len(x), *op.shape)
            case ir.Activation():
                return self.activate(op, x)
        raise SystemExit(f"CrypTen shim: operation {type(op).__name__} of {op.name} is not needed by the benchmark")

    def activate(self, op: ir.Activation, x):
        if not op.quad_count:
            return x.relu()
        a, b, c = (self.public[f"{op.name}.{name}"] for name in "abc")
        z = x.square() * a + x * b + c
        if not op.kept_count:
            return z
        index = self.index[op.name]
        flat = z.reshape(len(x), -1)
        flat[:, index] = x.reshape(len(x), -1)[:, index].relu()
        return flat.reshape(len(x), *op.shape)


class Worker:
    """Answers the benchmark; runs the same batch each time."""

    def __init__(self, control: Connection) -> None:
        self.control = control

    def serve(self) -> None:
        while True:
            message, _ = processes.receive(self.control)
            action = message.pop("do")
            if action == "stop":
                return
            if action == "start":
                self.start(**message)
            elif action == "run":
                self.run()
            elif action == "count":
                self.count()

    def start(self, party: int, folder: str, image: str, rendezvous: str, cores: list[int], threads: int) -> None:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
        os.environ |= {"RANK": str(party), "WORLD_SIZE": "2", "RENDEZVOUS": rendezvous}
        self.crypten = import_crypten()
        self.crypten.init()
        self.network = Network(self.crypten, files.load(Path(folder)))
        self.image = self.crypten.cryptensor(torch.from_numpy(np.load(image)), src=0)
        processes.send(self.control, {"instructions": torch.backends.cpu.get_cpu_capability()})

    def run(self) -> None:
        started = time.perf_counter()
        with torch.no_grad(), self.crypten.no_grad():
            answer = self.network(self.image)
        share = answer.share.contiguous().numpy()
        processes.send(self.control, {"seconds": time.perf_counter() - started}, share)

    def count(self) -> None:
        """CrypTen counts bytes both ways; half of them were sent."""
        import crypten.communicator as communicator

        with self.crypten.cfg.temp_override({"communicator.verbose": True}):
            communicator.get().reset_communication_stats()
            with torch.no_grad(), self.crypten.no_grad():
                self.network(self.image)
            stats = communicator.get().get_communication_stats()
        processes.send(self.control, {"rounds": int(stats["rounds"]), "bytes": int(stats["bytes"]) // 2})


if __name__ == "__main__":
    Worker(Connection(int(sys.argv[1]))).serve()
