"""What weight decay acts on, against torch's own optimizers."""

import numpy as np
import pytest
import torch
from torch import nn

from photinus.data.base import Batch
from photinus.models.module import ModuleConfig

ARGUMENTS = {"in_features": 4, "out_features": 3}


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("decays", ["all", "weights"])
def test_weight_decay_is_torchs_unless_it_leaves_biases_out(name, decays):
    rng = np.random.default_rng(0)
    batch = Batch(rng.random((8, 4), np.float32), rng.integers(0, 3, 8))
    options = {} if decays == "all" else {"decays": decays}
    config = ModuleConfig(
        module="torch.nn:Linear",
        arguments=ARGUMENTS,
        loss="cross_entropy",
        optimizer=name,
        settings={"weight_decay": 0.3},
        lr=0.1,
        **options,
    )
    model = config.build((), 0)
    inner = config.inner(model.parameters.layout)
    plain = nn.Linear(**ARGUMENTS)
    plain.load_state_dict(model.module.state_dict())
    decayed = [{"params": [plain.weight]}, {"params": [plain.bias]}]
    decayed[1] |= {"weight_decay": 0.0} if decays == "weights" else {}
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[name]
    optimizer = kind(decayed, lr=0.1, weight_decay=0.3)
    for step in range(5):
        gradient, _ = model.learn(batch, step)
        inner.step(model.parameters.trained, gradient, 0.0)
        optimizer.zero_grad()
        outputs = plain(torch.from_numpy(batch.features))
        nn.functional.cross_entropy(outputs, torch.from_numpy(batch.labels)).backward()
        optimizer.step()
    for mine, theirs in zip(model.module.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)
