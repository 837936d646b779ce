"""``oomph fit``: pretrained models whose weights are not here."""

from __future__ import annotations

import pytest
import torch
from support import oomph, run

ARRANGED = """
import sys, torch
from oomph.fitting.process import pretrained

pretrained.arrange()
folder = sys.argv[1]
"""
LOADS = """
def peak_of(model):
    torch.cuda.reset_peak_memory_stats()
    loss(model.cuda()).backward()
    return torch.cuda.max_memory_allocated()

whole = load()
for file in files():
    file.unlink()
made = load()
assert whole.dtype == made.dtype == torch.bfloat16
assert whole.training == made.training == False
assert pretrained.made() == [folder], pretrained.made()
peak_of(whole)  # makes the workspaces
whole.zero_grad()
first = peak_of(whole)
del whole
assert first == peak_of(made)
"""
MODELS = {
    "transformers": """
from pathlib import Path
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

LlamaForCausalLM(LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
    vocab_size=1000, dtype="bfloat16")).bfloat16().save_pretrained(folder)
files = lambda: Path(folder).glob("*.safetensors")
x = torch.randint(0, 1000, (2, 128), device="cuda")
load = lambda: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
loss = lambda model: model(input_ids=x, labels=x).loss
""",
    "diffusers": """
from pathlib import Path
from diffusers import UNet2DModel

UNet2DModel(
    sample_size=32, block_out_channels=(32, 64),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D")).bfloat16().save_pretrained(folder)
files = lambda: Path(folder).glob("*.safetensors")
x = torch.randn(1, 3, 32, 32, device="cuda", dtype=torch.bfloat16)
load = lambda: UNet2DModel.from_pretrained(
    pretrained_model_name_or_path=folder, torch_dtype=torch.bfloat16)
loss = lambda model: model(x, 3).sample.square().mean()
""",
}


@pytest.mark.long
@pytest.mark.parametrize("library", MODELS)
def test_a_model_without_weights_is_made_from_its_configuration(library, tmp_path):
    text = ARRANGED + MODELS[library] + LOADS
    result = run(text, str(tmp_path / "model"), card="8GiB,context=0", conf="")
    assert result.code == 0, result.said


MAKES = {
    "torchvision": """
from torchvision.models import resnet18
model, name = resnet18(weights="DEFAULT"), "download.pytorch.org/models/resnet18"
""",
    "timm": """
import timm
name = "vit_tiny_patch16_224"
model = timm.create_model(name, pretrained=True, num_classes=7)
assert model.head.out_features == 7
""",
    "torch.hub": """
name = "https://nowhere.example/a.pt"
model = torch.nn.Linear(8, 8)
before = model.weight.clone()
found = model.load_state_dict(torch.hub.load_state_dict_from_url(name))
assert not found.missing_keys and not found.unexpected_keys
assert torch.equal(model.weight, before)
""",
    "torch.hub, and it is here": """
from pathlib import Path
name = "none"
Path(folder, "hub/checkpoints").mkdir(parents=True)
torch.save(torch.nn.Linear(8, 8).state_dict(), Path(folder, "hub/checkpoints/a.pt"))
model = torch.nn.Linear(8, 8)
state = torch.hub.load_state_dict_from_url("https://nowhere.example/a.pt")
model.load_state_dict(state)
assert torch.equal(model.weight, state["weight"])
""",
}
MADE = """
print(*(pretrained.made() or ["none"]))
assert len(pretrained.made()) <= 1 and name in (*pretrained.made(), "none")[0]
assert all(bool(p.abs().sum() >= 0) for p in model.parameters())
"""


@pytest.mark.long
@pytest.mark.parametrize("library", MAKES)
def test_a_model_whose_weights_are_not_here_keeps_its_own(library, tmp_path):
    text = ARRANGED + MAKES[library] + MADE
    result = run(text, str(tmp_path), TORCH_HOME=str(tmp_path), HF_HOME=str(tmp_path))
    assert result.code == 0, result.said
    assert not [*tmp_path.rglob("*.part*")]


SAVES = """
import sys
from transformers import LlamaConfig
LlamaConfig(
    num_hidden_layers=1, vocab_size=1000, hidden_size=64, intermediate_size=64,
    num_attention_heads=2, architectures=["LlamaForCausalLM"]).save_pretrained({!r})
"""
BRIEFLY = ("--brief", "--gpu", "8GiB")
TRAINS = """
import sys, torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).cuda()
x = torch.randint(0, 1000, (2, 128), device="cuda")
model(input_ids=x, labels=x).loss.backward()
"""


@pytest.mark.long
def test_it_is_said(tmp_path):
    folder, script = tmp_path / "model", tmp_path / "train.py"
    assert run(SAVES.format(str(folder))).code == 0
    script.write_text(TRAINS)
    result = oomph("fit", *BRIEFLY, script, folder)
    assert result.code == 0, result.said
    assert f"The weights of {folder} are not on this machine" in result.out


@pytest.mark.long
def test_weights_that_a_script_reads_itself_are_fetched(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "state = torch.hub.load_state_dict_from_url(sys.argv[1])\n"
        "print(state['weight'].shape)\n"
        "torch.empty(1 << 20, device='cuda')\n"
    )
    torch.save(torch.nn.Linear(8, 8).state_dict(), tmp_path / "a.pt")
    url = (tmp_path / "a.pt").as_uri()
    result = oomph("fit", *BRIEFLY, script, url, TORCH_HOME=str(tmp_path))
    assert result.code == 0, result.said


@pytest.mark.long
def test_a_model_that_is_nowhere_is_the_script_s_error(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    result = oomph("fit", *BRIEFLY, script, tmp_path / "nowhere")
    assert result.code == 3
    assert "nowhere" in result.err
