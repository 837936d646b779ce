"""Batch finders of libraries, and the program's own, find what fits the device."""

from __future__ import annotations

import logging
import tempfile
import threading
import warnings
from typing import Any

import pytest
import torch
from support import MIB, Simulated, run
from torch import nn

CARD = "512MiB,context=0"
COMMON = "reserve:0,host_ahead:0,host_limit:16GiB"
on_oom = Simulated(CARD, COMMON)
always = Simulated(CARD, f"{COMMON},offload:always")
unnoticed = Simulated(CARD, f"{COMMON},batch_finder:off")
no_host = Simulated(CARD, f"{COMMON},offload:off")

SAMPLE_MIB = 4
LAYERS = 8  # each saves one tensor of SAMPLE_MIB for each sample
FINDING = (
    r"CUDA out of memory\..*a batch finder is running, and nothing moves to CPU memory "
    r"until it ends"
)


class Net(nn.Module):
    """Layers that may run again, over samples that it makes, and a state for AdamW."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4 * MIB // 4))

    def forward(self, size: int) -> torch.Tensor:
        x = torch.empty(size, SAMPLE_MIB * MIB // 4, device=self.scale.device)
        x = x * self.scale[:1]
        for _ in range(LAYERS):
            x = x.sin() * 2
        return x.sum() + self.scale.sum()


def train(size: int, steps: int = 4) -> None:
    net = Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        net(size).backward()
        optimizer.step()
        optimizer.zero_grad()


def fits(size: int) -> bool:
    try:
        train(size)
    except torch.OutOfMemoryError:
        return False
    return True


# ---- The finders; each gives the batch that it finds


def accelerated(size: int = 64) -> int:
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=size)
    def search(batch_size: int) -> int:
        train(batch_size)
        return batch_size

    return search()


def undecorated() -> int:
    import accelerate

    def search(batch_size: int, steps: int) -> int:
        train(batch_size, steps)
        return batch_size

    return accelerate.find_executable_batch_size(search, 64)(4)


def transformed() -> int:
    """The Trainer of transformers, whose whole training accelerate's finder runs."""
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.net(len(x))}

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            Model(),
            TrainingArguments(
                folder,
                auto_find_batch_size=True,
                per_device_train_batch_size=12,  # each try collects garbage thrice
                max_steps=3,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=[{"x": torch.zeros(1)} for _ in range(256)],
        )
        trainer.train()
        return trainer._train_batch_size


def lightning_module(package: Any) -> Any:
    class Module(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.batch_size = 1

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(torch.zeros(4096), self.batch_size)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.net(len(batch))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    return Module()


def lightning_trainer(package: Any, folder: str, **options: Any) -> Any:
    warnings.simplefilter("ignore")
    logging.getLogger(package.__name__).setLevel(logging.ERROR)
    return package.Trainer(
        accelerator="gpu",
        devices=1,
        max_steps=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def tuned(mode: str) -> int:
    import lightning.pytorch as package
    from lightning.pytorch.tuner import Tuner

    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning_trainer(package, folder)
        return Tuner(trainer).scale_batch_size(lightning_module(package), mode=mode)


def tuned_by_doubling() -> int:
    return tuned("power")


def tuned_by_halving() -> int:
    return tuned("binsearch")


def called_back() -> int:
    """The callback of the package under its older name."""
    import pytorch_lightning as package
    from pytorch_lightning.callbacks import BatchSizeFinder

    finder = BatchSizeFinder()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning_trainer(package, folder, callbacks=[finder])
        trainer.fit(lightning_module(package))
    return finder.optimal_batch_size


def by_hand() -> int:
    import oomph

    size = 64
    with oomph.batch_finder():
        while not fits(size):
            size //= 2
    return size


FINDERS = [
    *(accelerated, undecorated, tuned_by_doubling, tuned_by_halving, called_back),
    by_hand,
]


def find(finder: str, *arguments: int) -> dict[str, Any]:
    """What a finder finds, and what it cost."""
    import oomph

    before = oomph.stats()
    found = globals()[finder](*arguments)
    now = oomph.stats()
    return {
        "found": found,
        "rescues": now["rescues"] - before["rescues"],
        "sent": now["sent_bytes"] - before["sent_bytes"],
        "plans": len(oomph.planner.explain()),
        "is_forbidden": oomph._C.offload_is_forbidden(),
    }


@pytest.mark.long
@pytest.mark.parametrize("finder", [finder.__name__ for finder in FINDERS])
def test_a_finder_finds_what_it_would_without_host_memory(finder):
    with_host = on_oom.call(__name__, "find", finder)
    without = no_host.call(__name__, "find", finder)
    assert with_host == without
    assert 8 <= with_host["found"] < 16
    assert with_host["rescues"] == with_host["plans"] == 0


def test_a_trainer_of_transformers_trains_with_what_accelerate_finds():
    trained = on_oom.call(__name__, "find", "transformed")
    assert trained == no_host.call(__name__, "find", "accelerated", 12)
    assert trained["found"] < 12 and trained["rescues"] == 0


@pytest.mark.long
def test_a_finder_finds_the_same_where_everything_is_sent_ahead():
    found = always.call(__name__, "find", "accelerated")
    assert found == no_host.call(__name__, "find", "accelerated")


def test_without_the_setting_every_batch_fits():
    found = unnoticed.call(__name__, "find", "accelerated")
    assert found["found"] == 64
    assert found["rescues"] > 0


# ---- Afterwards


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


@pytest.mark.long
@on_oom
def test_a_training_after_the_search_is_rescued_and_planned():
    import oomph

    assert accelerated() < 16
    train(24, steps=1)
    assert oomph.stats()["rescues"] > 0
    train(24)
    assert oomph.planner.explain()[0]["missing_bytes"] > 0


@on_oom
def test_what_was_planned_before_a_search_is_forgotten():
    import oomph

    train(24)
    assert oomph.planner.explain()[0]["missing_bytes"] > 0
    assert find("accelerated")["plans"] == 0
    assert not nn.modules.module._global_forward_pre_hooks


@on_oom
def test_a_step_that_was_rescued_before_the_search_is_not_planned_in_it():
    import oomph

    kept = [take(500 * MIB), take(20 * MIB)]
    rescues = oomph.stats()["rescues"]
    assert rescues > 0
    del kept
    with oomph.batch_finder():
        train(4, steps=8)  # the first ends the step that was rescued
        assert oomph.planner.explain() == {}
        assert not fits(24)
    assert oomph.stats()["rescues"] == rescues


@always
def test_everything_is_sent_ahead_again_after_a_search():
    import oomph

    with oomph.batch_finder():
        before = oomph.stats()["sent_bytes"]
        train(4)
        assert oomph.stats()["sent_bytes"] == before
    train(4)
    assert oomph.stats()["sent_bytes"] > before


# ---- However it runs


@on_oom
def test_the_error_says_that_a_finder_runs():
    import oomph

    kept = [take(500 * MIB)]
    with oomph.batch_finder(), pytest.raises(torch.OutOfMemoryError, match=FINDING):
        take(20 * MIB)
    kept.append(take(20 * MIB))
    del kept


@on_oom
def test_searches_nest_and_end_however_they_are_left():
    import oomph
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=4)
    def fail(batch_size: int) -> None:
        with oomph.no_offload(), oomph.batch_finder():
            raise KeyError(batch_size)

    with oomph.batch_finder():
        with pytest.raises(KeyError):
            fail()
        assert oomph._C.batch_finder_runs()
        assert not fits(24)
    assert not oomph._C.offload_is_forbidden()
    with pytest.raises(KeyError):
        fail()
    assert not oomph._C.offload_is_forbidden()
    assert fits(24)


@on_oom
def test_a_search_holds_for_all_threads_until_the_last_one_ends():
    import oomph

    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with oomph.batch_finder():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    assert accelerated() < 16
    kept = [take(500 * MIB)]
    with pytest.raises(torch.OutOfMemoryError, match=FINDING):
        take(20 * MIB)
    leave.set()
    thread.join()
    kept.append(take(20 * MIB))
    del kept


@on_oom
def test_what_is_on_the_host_stays_usable_in_a_search():
    import oomph

    room = torch.cuda.mem_get_info()[0] // (2 * MIB) * 2 * MIB
    kept = [take(room), take(20 * MIB)]
    with oomph.batch_finder():
        kept[1].fill_(3)
        assert oomph.stats()["host_block_bytes"] == 20 * MIB
    del kept


# ---- How finders are known


def test_installing_imports_no_library_and_knows_those_that_were_imported():
    result = run(
        """
        import sys
        from accelerate import find_executable_batch_size  # before oomph
        import oomph
        oomph.install()
        assert not {"lightning", "pytorch_lightning"} & sys.modules.keys()
        seen = []

        @find_executable_batch_size(starting_batch_size=4)
        def search(batch_size):
            seen.append(oomph._C.batch_finder_runs())

        search()
        print(seen, oomph._C.batch_finder_runs())
        """,
        card=CARD,
    )
    assert result.code == 0, result.err
    # It was found under the name that the program had imported it by.
    assert result.out.splitlines()[-1] == "[True] False"


def test_a_library_without_the_finder_that_is_known_is_left_alone(tmp_path):
    package = tmp_path / "accelerate" / "utils"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "memory.py").write_text("other = 1")
    result = run(
        """
        import oomph
        oomph.install()
        import accelerate.utils.memory as memory
        print(memory.other, hasattr(memory, "find_executable_batch_size"))
        """,
        card=CARD,
        PYTHONPATH=str(tmp_path),
    )
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1] == "1 False"
