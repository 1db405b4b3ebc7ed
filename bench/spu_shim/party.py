"""One party of an SPU 0.9.5 run of an AutoReP Program: `python party.py FD`, started by `autorep bench peers`.

The same network, numbers and kept ReLUs as ours, with secret weights; kept ReLUs are gathered into one call per layer.
The quadratics' coefficients are public, which favours SPU. With SEMI2K its triples come from its default first-party
provider; Cheetah needs none.

Messages as in `autorep.bench.processes`: {"do": "start", …}; {"do": "run"} answers with this party's share of logits;
{"do": "count"} answers with nothing known, since SPU offers no statistics in Python; {"do": "stop"}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from autorep.bench import processes
from autorep.program import files, ir


def network(program: ir.Program, secret_names: list[str]):
    """The Program as a function of (secret parameters, image) for JAX."""
    import jax
    import jax.numpy as jnp

    def activate(op: ir.Activation, x):
        if not op.quad_count:
            return jnp.maximum(x, 0)
        public = (program.parameters[f"{op.name}.{name}"] for name in "abc")
        a, b, c = (np.asarray(v, np.float32).reshape(1, -1, *[1] * (len(op.shape) - 1)) for v in public)
        z = x * x * a + x * b + c
        if not op.kept_count:
            return z
        kept = np.asarray(op.kept)
        order = np.arange(op.size)
        order[kept] = op.size + np.arange(len(kept))
        relu = jnp.maximum(jnp.take(x.reshape(-1), kept), 0)
        return jnp.take(jnp.concatenate([z.reshape(-1), relu]), order).reshape(x.shape)

    def step(op: ir.Op, inputs: list, parameters: dict):
        x = inputs[0]
        match op:
            case ir.Conv():
                bias = parameters[f"{op.name}.bias"]
                bias = bias.reshape(1, op.shape[0], *(op.shape[1:] if bias.ndim > 1 else (1, 1)))
                padding = [(p, p) for p in op.padding]
                weight = parameters[f"{op.name}.weight"]
                return jax.lax.conv_general_dilated(x, weight, op.stride, padding) + bias
            case ir.Linear():
                return x @ parameters[f"{op.name}.weight"].T + parameters[f"{op.name}.bias"]
            case ir.Requantize():
                return x
            case ir.Add():
                return inputs[0] + inputs[1]
            case ir.SumPool():
                return x.sum((2, 3)).reshape(1, *op.shape)
            case ir.Flatten():
                return x.reshape(1, *op.shape)
            case ir.Activation():
                return activate(op, x)
        raise SystemExit(f"SPU shim: operation {type(op).__name__} of {op.name} is not needed by the benchmark")

    def run(secret: list, image):
        parameters = dict(zip(secret_names, secret))
        values = {program.input.name: image}
        for op in program.ops[1:]:
            values[op.name] = step(op, [values[name] for name in op.inputs], parameters)
        return values[program.output.name]

    return run


class Worker:
    """Answers the benchmark; runs the same image each time."""

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
                processes.send(self.control, {"rounds": None, "bytes": None})

    def start(
        self, party: int, folder: str, image: str, rendezvous: str, cores: list[int], threads: int, protocol: str
    ) -> None:
        os.sched_setaffinity(0, cores)
        import spu
        from spu import libspu
        from spu.utils import frontend

        program = files.load(Path(folder))
        names = sorted(key for key in program.parameters if key.endswith((".weight", ".bias")))
        arguments = [np.asarray(program.parameters[key], np.float32) for key in names]
        arguments = [*arguments, np.load(image)[:1]]
        config = libspu.RuntimeConfig(protocol=getattr(libspu.ProtocolKind, protocol), field=libspu.FieldType.FM64)
        config.max_concurrency = threads
        inputs = [f"in{i}" for i in range(len(arguments))]
        secret = libspu.Visibility.VIS_SECRET
        self.executable, _ = frontend.compile(
            frontend.Kind.JAX, network(program, names), (arguments[:-1], arguments[-1]), {}, inputs,
            [secret] * len(inputs), lambda outputs: [f"out{i}" for i in range(len(outputs))],
        )  # fmt: skip
        shared = Path(rendezvous.removeprefix("file://"))
        ports = self.agree_on_ports(shared, party)
        description = libspu.link.Desc()
        for rank, port in enumerate(ports):
            description.add_party(f"party{rank}", f"127.0.0.1:{port}")
        description.recv_timeout_ms = 600_000  # Cheetah computes for long between two messages
        self.link = libspu.link.create_brpc(description, party)
        self.runtime = spu.Runtime(self.link, config)
        self.outputs = program.output.size
        io = spu.Io(2, config)
        for name, value in zip(inputs, arguments):
            path = Path(f"{shared}-{name}")
            if party == 0:
                shares = io.make_shares(value, secret)
                path.with_suffix(".part").write_bytes(_to_bytes(shares[1]))
                path.with_suffix(".part").rename(path)
                own = shares[0]
            else:
                own = _from_bytes(_wait_for(path), libspu.Share())
            self.runtime.set_var(name, own)
        processes.send(self.control, {})

    def agree_on_ports(self, shared: Path, party: int) -> list[int]:
        """Party 0 finds two free ports and writes them down."""
        import socket

        path = Path(f"{shared}-ports")
        if party == 0:
            sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
            ports = [s.getsockname()[1] for s in sockets]
            for s in sockets:
                s.close()
            path.with_suffix(".part").write_text(json.dumps(ports))
            path.with_suffix(".part").rename(path)
        return json.loads(_wait_for(path))

    def run(self) -> None:
        started, busy = time.perf_counter(), time.process_time()
        self.runtime.run(self.executable)
        share = self.runtime.get_var(self.executable.output_names[0])
        spent = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - busy}
        content = b"".join(share.share_chunks)[-8 * self.outputs :]  # after a short header
        processes.send(self.control, spent, content)


def _wait_for(path: Path) -> bytes:
    deadline = time.monotonic() + 120
    while not path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"SPU shim: {path.name} did not come from the other party")
        time.sleep(0.01)
    return path.read_bytes()


def _to_bytes(share) -> bytes:
    lengths = [len(share.meta), *map(len, share.share_chunks)]
    return json.dumps(lengths).encode() + b"\n" + share.meta + b"".join(share.share_chunks)


def _from_bytes(data: bytes, share):
    head, _, body = data.partition(b"\n")
    parts = []
    for length in json.loads(head):
        parts.append(body[:length])
        body = body[length:]
    share.meta, share.share_chunks = parts[0], parts[1:]
    return share


if __name__ == "__main__":
    Worker(Connection(int(sys.argv[1]))).serve()
