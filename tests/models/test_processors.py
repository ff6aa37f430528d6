"""What all workers of a run compute alike has the same bits on processors of different width."""

import json
import os
import platform
import subprocess
import sys

import numpy as np
import pytest

AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
"""As of the Makefile."""
CODE = """
import hashlib, json
import numpy as np, torch
from photinus.core.parameters import TRAINED, Layout
from photinus.models.optimizers import TorchOptimizer
from photinus.models.schedules import Schedule
from photinus.strategies.codecs import CODECS, decode, encode

torch.set_num_threads(1)
numbers = 10_003  # no multiple of any width
layout = Layout.of([("w", (numbers,), TRAINED)])
made = {"held": [torch.backends.cpu.get_cpu_capability()]}
for name in ("sgd", "adam", "adamw", "rmsprop", "adagrad"):
    chance = np.random.default_rng(0)
    inner = TorchOptimizer(layout, name, lr=Schedule.constant(0.01))
    w = chance.standard_normal(numbers).astype(np.float32)
    for step in range(20):
        inner.step(w, chance.standard_normal(numbers).astype(np.float32), step / 20)
    made[name] = hashlib.sha256(w.tobytes()).hexdigest()
    if name == "rmsprop":
        made["numbers"] = w.tolist()
chance = np.random.default_rng(1)
roots = torch.from_numpy(chance.random(numbers, np.float32)).sqrt()
made["roots"] = hashlib.sha256(roots.numpy().tobytes()).hexdigest()
for name in CODECS:
    made[name] = hashlib.sha256(decode(name, encode(name, w)).tobytes()).hexdigest()
print(json.dumps(made))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86 is held to AVX2")
def test_optimizers_and_codecs_give_the_bits_of_avx2_on_wider_processors():
    as_it_is = {name: value for name, value in os.environ.items() if name not in AVX2}
    outputs = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", CODE], env=env, check=True, capture_output=True, text=True
            ).stdout
        )
        for env in (as_it_is, as_it_is | AVX2)
    ]
    assert outputs[1].pop("held") == ["AVX2"]
    outputs[0].pop("held")
    numbers = [output.pop("numbers") for output in outputs]
    roots = [output.pop("roots") for output in outputs]
    if roots[0] != roots[1]:  # as of Intel's library, whose last bit AVX-512 changes
        np.testing.assert_allclose(*numbers, rtol=1e-5, atol=1e-6)
        del outputs[0]["rmsprop"], outputs[1]["rmsprop"]
    assert outputs[0] == outputs[1]
