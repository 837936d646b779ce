# kind: the grading recipe of a job is a Python file that is imported under a name of its own and stays in sys.modules with its lookup table; after PolicyEngine/policyengine-core issue 520 and PrefectHQ/prefect PR 21692
import importlib.util
import random
import sys
import tempfile
import textwrap
from pathlib import Path

import torch
import torch.nn.functional as F

DEVICE = "cuda"

RECIPE = textwrap.dedent(
    '''
    """{title}"""
    import torch

    DEVICE = "cuda"
    SIZE = {size}
    WARMTH = {warmth}
    CONTRAST = {contrast}

    _axis = torch.linspace(0, 1, SIZE, device=DEVICE)
    _b, _g, _r = torch.meshgrid(_axis, _axis, _axis, indexing="ij")
    LUT = torch.stack((_r * (1 + WARMTH), _g, _b * (1 - WARMTH)))
    LUT = ((LUT - 0.5) * CONTRAST + 0.5).clamp(0, 1)


    def exposure(frame):
        return (frame * {gain}).clamp(0, 1)
    '''
)


def write_recipe(folder, job, rng):
    """What the colourist's tool exports for each job."""
    path = Path(folder) / "recipe.py"
    path.write_text(RECIPE.format(
        title=f"look {job}", size=rng.choice((25, 29, 33)), warmth=round(rng.uniform(-0.2, 0.2), 3),
        contrast=round(rng.uniform(0.8, 1.3), 3), gain=round(rng.uniform(0.9, 1.2), 3)))
    return path


def load_recipe(path, job):
    name = f"recipe_{job:05d}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # LEAK
    spec.loader.exec_module(module)
    return module


def apply_lut(frames, lut):
    n, _, h, w = frames.shape
    grid = frames.permute(0, 2, 3, 1).reshape(1, n, h, w, 3) * 2 - 1
    graded = F.grid_sample(lut.unsqueeze(0), grid, align_corners=True, padding_mode="border")
    return graded[0].permute(1, 0, 2, 3)


class Denoiser(torch.nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(3, width, 3, padding=1), torch.nn.ReLU(),
            torch.nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x):
        return (x - 0.1 * self.net(x)).clamp(0, 1)


class Grader:
    def __init__(self):
        self.denoise = Denoiser().to(DEVICE).eval()

    @torch.inference_mode()
    def run(self, job, recipe_path, frames):
        recipe = load_recipe(recipe_path, job)
        frames = self.denoise(frames.to(DEVICE))
        frames = recipe.exposure(frames)
        graded = apply_lut(frames, recipe.LUT)
        return recipe.__doc__, graded.mean((0, 2, 3)).tolist()


def main():
    rng = random.Random(1)
    sys.dont_write_bytecode = True
    grader = Grader()
    for job in range(90):
        with tempfile.TemporaryDirectory() as folder:
            path = write_recipe(folder, job, rng)
            title, mean = grader.run(job, path, torch.rand(2, 3, 96, 128))
        if job % 15 == 0:
            print(title, "->", ", ".join(f"{m:.3f}" for m in mean))


if __name__ == "__main__":
    main()
