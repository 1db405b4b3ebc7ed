"""Two processes under torchrun: the same masks and weights on both."""

import os
import subprocess
import sys

import torch

from autorep.training.runs import load_tensors, read_log

PROGRAM = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file
from autorep.training import ReplaceSettings, recipe

torch.set_num_threads(1)
out, weights = Path(sys.argv[1]), Path(sys.argv[2])
original = recipe._finish

def finish(trainer, *facts):
    state = {k: v.clone().contiguous() for k, v in trainer.model.state_dict().items() if "num_batches" not in k}
    save_file(state, out.parent / f"rank{trainer.processes.rank}.safetensors")
    return original(trainer, *facts)

recipe._finish = finish
recipe.replace(ReplaceSettings(weights=weights, budget=0.1, epochs=4, out=out, accumulate=2))
"""


def test_two_processes_agree_on_masks_and_weights(baseline, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    arguments = [str(tmp_path / "run"), str(baseline[0] / "model.safetensors")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    first, _ = load_tensors(tmp_path / "rank0.safetensors")
    second, _ = load_tensors(tmp_path / "rank1.safetensors")
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert different == []
    kept = sum(int(value.sum()) for name, value in first.items() if name.endswith(".mask"))
    assert kept == 410
    result = read_log(tmp_path / "run")[-1]
    assert result["relus"] == 410
    assert result["test_accuracy"] > 85
