from __future__ import annotations

import json
import random

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from photinus.checkpoint.export import (
    WEIGHTS,
    load_model,
    save_model,
    tensors_from_state_dict,
)
from photinus.checkpoint.files import FolderFormat
from photinus.core.errors import CheckpointError, UsageError


def test_a_saved_model_is_plain_and_comes_back(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    state = net.state_dict()
    folder = save_model(tmp_path / "model", tensors_from_state_dict(state), {"classes": 2})
    assert sorted(f.name for f in folder.iterdir()) == ["model.json", "model.safetensors"]
    assert json.loads((folder / "model.json").read_text())["meta"] == {"classes": 2}
    plain = safetensors.torch.load_file(folder / "model.safetensors")
    restored = {name: torch.from_numpy(a.copy()) for name, a in load_model(folder).tensors.items()}
    for name, tensor in state.items():
        assert torch.equal(plain[name], tensor)
        assert torch.equal(restored[name], tensor)
    net.load_state_dict(restored)


def test_a_model_may_be_saved_again_but_nothing_else_is_replaced(tmp_path):
    folder = save_model(tmp_path / "m", {"w": np.ones(1)}, {})
    save_model(folder, {"w": np.zeros(1)}, {})
    assert load_model(folder).tensors["w"].tolist() == [0]
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError, match="is there already and is no saved model"):
        save_model(tmp_path / "mine", {}, {})
    with pytest.raises(CheckpointError, match=r"could not be saved in .* got No such file"):
        save_model(tmp_path / "no" / "where", {}, {})


def test_a_flipped_bit_in_a_model_is_refused(tmp_path):
    folder = save_model(tmp_path / "m", {"w": np.ones(3)}, {"a": 1})
    for file in folder.iterdir():
        content = file.read_bytes()
        for bit in random.Random(1).sample(range(8 * len(content)), 40):
            data = bytearray(content)
            data[bit // 8] ^= 1 << bit % 8
            file.write_bytes(data)
            with pytest.raises(CheckpointError, match=file.name):
                load_model(folder)
        file.write_bytes(content)
    load_model(folder)


def test_a_warm_start_takes_any_safetensors_file_also_bfloat16(tmp_path):
    path = tmp_path / "w.safetensors"
    safetensors.numpy.save_file({"w": np.arange(3)}, path)
    assert load_model(path).tensors["w"].tolist() == [0, 1, 2]
    safetensors.torch.save_file({"w": torch.tensor([1.5], dtype=torch.bfloat16)}, path)
    loaded = load_model(path).tensors["w"]
    assert (loaded.dtype, loaded.tolist()) == (np.float32, [1.5])


def test_other_formats_are_refused_since_they_can_hold_code(tmp_path):
    torch.save({"w": torch.ones(1)}, tmp_path / "w.pt")
    with pytest.raises(UsageError, match=r"only safetensors files are read.*got w\.pt; convert it"):
        load_model(tmp_path / "w.pt")
    (tmp_path / "w.pt").rename(tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match=r"w\.safetensors is no safetensors file"):
        load_model(tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match="no model at that path"):
        load_model(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"model\.json is missing"):
        load_model(tmp_path)
    with pytest.raises(UsageError, match="step of the state_dict must be a tensor; got int"):
        tensors_from_state_dict({"step": 3})


def test_a_folder_whose_seal_lacks_a_field_is_damaged(tmp_path):
    seal = FolderFormat(file="model.json", format="photinus-model")
    seal.write(tmp_path / "model", {}, {WEIGHTS: {"w": np.ones(1)}}, lambda _: None)
    with pytest.raises(CheckpointError, match=r"model\.json is incomplete; got no meta"):
        load_model(tmp_path / "model")
    seal.write(tmp_path / "other", {"meta": {}}, {}, lambda _: None)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        load_model(tmp_path / "other")
