"""``oomph fit``: pretrained models whose weights are not here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import Result, oomph

SAVES = {
    "transformers": """
from transformers import LlamaConfig, LlamaForCausalLM
model = LlamaForCausalLM(LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
    vocab_size=1000, dtype="bfloat16")).bfloat16()
""",
    "diffusers": """
from diffusers import UNet2DModel
model = UNet2DModel(
    sample_size=32, block_out_channels=(32, 64),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D")).bfloat16()
""",
}
TRAINS = {
    "transformers": """
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).cuda()
x = torch.randint(0, 1000, (2, 128), device="cuda")
loss = model(input_ids=x, labels=x).loss
""",
    "diffusers": """
from diffusers import UNet2DModel
model = UNet2DModel.from_pretrained(
    pretrained_model_name_or_path=sys.argv[1], torch_dtype=torch.bfloat16).cuda()
x = torch.randn(1, 3, 32, 32, device="cuda", dtype=torch.bfloat16)
loss = model(x, 3).sample.square().mean()
""",
}


def train(tmp_path: Path, library: str, folder: Path, *options: str) -> Result:
    script = tmp_path / "train.py"
    text = "\nloss.backward()\nprint('made', model.dtype, model.training)\n"
    script.write_text("import sys, torch\n" + TRAINS[library] + text)
    return oomph("fit", "--gpu", "8GiB", *options, script, folder)


@pytest.mark.parametrize("library", SAVES)
def test_a_model_without_weights_is_made_from_its_configuration(library, tmp_path):
    saves = tmp_path / "saves.py"
    folders = [tmp_path / "whole", tmp_path / "configuration"]
    text = "\n".join(f"model.save_pretrained({str(f)!r})" for f in folders)
    saves.write_text(SAVES[library] + text)
    saved = oomph("run", saves)
    assert saved.code == 0, saved.said
    weights = [f for f in folders[1].iterdir() if f.suffix == ".safetensors"]
    assert weights
    for file in weights:
        file.unlink()
    results = [train(tmp_path, library, folder, "--json") for folder in folders]
    assert [result.code for result in results] == [0, 0], results[1].said
    runs = [
        json.loads(result.out)["cards"][0]["ways"]["native"]["run"]
        for result in results
    ]
    assert [run["without_weights"] for run in runs] == [[], [str(folders[1])]]
    said = [[s for s in run["output"].split("\n") if "made" in s] for run in runs]
    assert said[0] == said[1] == ["made torch.bfloat16 False"]
    whole, made = (run["allocated_bytes"] for run in runs)
    assert made == whole


def test_it_is_said(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    made = 'num_hidden_layers=1, vocab_size=1000, architectures=["LlamaForCausalLM"]'
    text = f"from transformers import LlamaConfig\nLlamaConfig({made}"
    (tmp_path / "saves.py").write_text(f"{text}).save_pretrained({str(folder)!r})")
    assert oomph("run", tmp_path / "saves.py").code == 0
    result = train(tmp_path, "transformers", folder)
    assert result.code == 0, result.said
    assert f"Weights of {folder} are not on this machine" in result.out


def test_a_model_that_is_nowhere_is_the_script_s_error(tmp_path):
    result = train(tmp_path, "transformers", tmp_path / "nowhere")
    assert result.code == 3
    assert "nowhere" in result.err


MAKES = {
    "torchvision": "from torchvision.models import resnet18\n"
    "model = resnet18(weights={weights!r} if {loads} else None)",
    "timm": "import timm\n"
    "model = timm.create_model('vit_tiny_patch16_224', pretrained={loads})",
    "torch.hub": "from torch import hub, nn\n"
    "model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 224 * 224, 64))\n"
    "state = hub.load_state_dict_from_url('https://{weights}/a.pt') if {loads} else 0\n"
    "print(model.load_state_dict(state or model.state_dict()))",
}
NAMES = {"torchvision": "DEFAULT", "timm": "", "torch.hub": "nowhere.example"}
MADE = {
    "torchvision": "https://download.pytorch.org/models/resnet18",
    "timm": "vit_tiny_patch16_224",
    "torch.hub": "https://nowhere.example/a.pt",
}


@pytest.mark.parametrize("library", MAKES)
def test_a_model_whose_weights_are_not_here_keeps_its_own(library, tmp_path):
    script = tmp_path / "train.py"
    trains = "\nx = torch.randn(2, 3, 224, 224, device='cuda')\n"
    trains += "model.cuda()(x).square().mean().backward()\n"
    runs = []
    for loads in (True, False):
        makes = MAKES[library].format(loads=loads, weights=NAMES[library])
        script.write_text("import torch\n" + makes + trains)
        result = oomph("fit", "--json", "--gpu", "8GiB", script, TORCH_HOME=tmp_path)
        assert result.code == 0, result.said
        answers = json.loads(result.out)["cards"][0]["ways"]
        runs.append(answers["native"]["run"])
    loaded, made = runs
    assert loaded["allocated_bytes"] == made["allocated_bytes"]
    assert made["without_weights"] == []
    (name,) = loaded["without_weights"]
    assert name.startswith(MADE[library])
