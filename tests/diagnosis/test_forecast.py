"""What the error predicts of a step, held against steps that had room."""

from __future__ import annotations

import copy
import functools
import math
import re
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from forecasts import peak_bytes, predicted, step_bytes, text_within
from oomph.base.sizes import parse_size
from oomph.diagnosis import forecast
from support import MIB, Simulated, execute, remedies
from torch import nn
from torch.utils.checkpoint import checkpoint

# The tests of a module share a process, and a machine that may be slow.
forecast.SECONDS_IN_ALL = math.inf
card = Simulated("4GiB,context=0", "offload:off,reserve:0,error:full")
TOKENS, WORDS, WIDTH, BLOCKS = 128, 8192, 512, 6
FRACTIONS = [0.45, 0.55, 0.62, 0.9]  # of what a step takes; forward has no more


class Attention(nn.Module):
    """As most do it: a class of its own within the block's."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.view(*x.shape[:2], 8, -1).transpose(1, 2)
            for part in self.qkv(x).split(WIDTH, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention, self.wide = Attention(), Wide()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.wide(self.norms[1](x))


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 8, batch_first=True)


class Words(nn.Module):
    """A language model; what its blocks are can be chosen."""

    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.recompute = self.chunked = False
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            again = self.recompute
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        if not self.chunked:
            return F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())
        parts = zip(x.flatten(0, 1).chunk(8), y.flatten().chunk(8), strict=True)
        return sum(checkpoint(self.part, *p, use_reentrant=False) for p in parts) / 8

    def part(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(x), y)


class Rows(nn.Sequential):
    """Layers of 4 MiB, for rows of 4 KiB."""

    def __init__(self, count: int) -> None:
        layers = (nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(count))
        super().__init__(*layers)


def train(batch: int = 16, parts: int = 1, half: bool = False, **options: bool) -> None:
    """Steps as scripts make them; options are attributes of the model."""
    model = Words().cuda()
    for name, value in options.items():
        setattr(model, name, value)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        for _ in range(parts):
            x = torch.randint(WORDS, (batch, TOKENS), device="cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                loss = model(x, x)
            (loss / parts).backward()
        optimizer.step()
        optimizer.zero_grad()


def as_said(action: str) -> dict[str, object]:
    """How to train as a remedy says."""
    how: dict[str, object] = {}
    found = re.search(r"batch \d+ -> (\d+), accumulating gradients over (\d+)", action)
    if found:
        how |= {"batch": int(found[1]), "parts": int(found[2])}
    if "checkpointing the 6 Block" in action:
        how["recompute"] = True
    if "cross-entropy in 8 chunks" in action:
        how["chunked"] = True
    if "torch.autocast" in action:
        how["half"] = True
    return how


@pytest.mark.long
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("fraction", FRACTIONS)
@card
def test_a_step_comes_to_what_was_predicted(fraction, half):
    how = functools.partial(train, half=half)
    true = peak_bytes(how)
    text = text_within(fraction * true, how)
    assert step_bytes(text) == pytest.approx(true, rel=0.01)


@pytest.mark.parametrize(
    "fraction",
    [
        0.6,
        *(
            pytest.param(f, marks=pytest.mark.long)
            for f in (0.68, 0.75, 0.82, 0.9, 0.97)
        ),
    ],
)
@card
def test_what_is_said_to_be_enough_is_enough(fraction):
    true = peak_bytes(train)
    text = text_within(fraction * true, train)
    assert text is not None
    named = remedies(text)
    tried = 0
    for action, is_enough in named.items():
        how = as_said(action)
        if is_enough and how:
            again = text_within(fraction * true, functools.partial(train, **how))
            assert again is None, action
            tried += 1
    assert tried > 0, text


@card
def test_checkpointing_and_a_smaller_batch_are_enough_together_where_neither_is():
    model = Rows(16).cuda()

    def train_long() -> None:
        for _ in range(2):
            x = torch.randn(2, 4096, 1024, device="cuda")
            model(x).square().mean().backward()

    named = remedies(text_within(0.35 * peak_bytes(train_long), train_long) or "")
    apart = [a for a in named if a.startswith(("batch 2 -> 1", "checkpoint"))]
    both = [a for a in apart if "batch 2 -> 1" in a and ", and " in a]
    assert [named[action] for action in both] == [True]
    assert [named[action] for action in apart if action not in both] == [False] * 2


@pytest.mark.long
@card
def test_checkpointing_and_a_smaller_batch_go_together_where_neither_is_enough():
    true = peak_bytes(train)
    named = remedies(text_within(0.55 * true, train) or "")
    both = [action for action in named if ", and " in action]
    assert any("checkpointing" in action and "batch 16" in action for action in both)


@pytest.mark.long
@card
def test_a_step_that_nobody_sees_is_not_predicted():
    model = Words().cuda()
    x = torch.randint(WORDS, (64, TOKENS), device="cuda")
    size = torch.cuda.memory_allocated() + 60 * MIB
    text = text_within(size, lambda: model(x, x))  # nothing goes back
    assert text is not None
    assert "Block.forward" in text or "Attention.forward" in text
    assert "unknown: oomph could not run it again. Backward will need more." in text


@card
def test_the_blocks_of_a_library_are_named_too():
    def train_encoder() -> None:
        model = Words(encoder_layer).cuda()
        for _ in range(2):
            x = torch.randint(WORDS, (16, TOKENS), device="cuda")
            model(x, x).backward()

    true = peak_bytes(train_encoder)
    text = text_within(0.7 * true, train_encoder)
    assert text is not None
    assert "checkpointing the 6 TransformerEncoderLayer modules (blocks.*)" in text
    assert step_bytes(text) == pytest.approx(true, rel=0.01)


@pytest.mark.long
@card
def test_an_encoder_and_a_decoder_are_predicted_before_either_is_through():
    def train_both() -> None:
        model = nn.Transformer(WIDTH, 8, 3, 3, 2048, batch_first=True).cuda()
        x = torch.ones(16, TOKENS, WIDTH, device="cuda")
        for _ in range(2):
            model(x, x).sum().backward()

    text = predicted(train_both)
    (action,) = [action for action in remedies(text) if action.startswith("checkpoint")]
    assert "Layer modules (" in action
    assert "by module: " in text and "encoder.layers.*" in text


@pytest.mark.long
@card
def test_blocks_of_several_containers_are_predicted_and_checkpointed():
    def train_stages() -> None:
        stages = nn.Sequential(
            *(nn.Sequential(Block(), Block(), Block()) for _ in range(3))
        ).cuda()
        x = torch.ones(16, TOKENS, WIDTH, device="cuda")
        for _ in range(2):
            stages(x).sum().backward()

    text = predicted(train_stages)
    assert "checkpointing the 9 Block modules (*.*)" in text


@card
def test_at_the_logits_a_step_is_predicted_without_blocks():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(WORDS, WIDTH)
            self.layers = nn.LSTM(WIDTH, WIDTH, 2)
            self.head = nn.Linear(WIDTH, WORDS)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.head(self.layers(self.tokens(x))[0])
            return F.cross_entropy(y.flatten(0, 1), x.flatten())

    def train_recurrent() -> None:
        model = Recurrent().cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            x = torch.randint(WORDS, (64, 128), device="cuda")
            model(x).backward()
            optimizer.step()
            optimizer.zero_grad()

    text = predicted(train_recurrent, fraction=0.55)
    (chunked,) = [action for action in remedies(text) if "cross-entropy" in action]
    assert "8192 rows" in chunked


@card
def test_attention_on_what_a_recurrent_network_gave_batch_first_copies_it():
    class Translation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.LSTM(WIDTH, WIDTH, batch_first=True)
            self.keys, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            memory = self.encoder(x)[0]
            state = memory.mean(1)
            for _ in range(16):
                scores = self.score(torch.tanh(self.keys(memory) + state.unsqueeze(1)))
                state = (scores.softmax(1) * memory).sum(1)
            return state.sum()

    def train_translation() -> None:
        model = Translation().cuda()
        x = torch.ones(16, TOKENS, WIDTH, device="cuda")
        for _ in range(2):
            model(x).backward()

    predicted(train_translation, within=0.02)


@pytest.mark.long
@card
def test_blocks_with_hooks_do_not_hold_what_the_failed_forward_made():
    def train_hooked() -> None:
        model = nn.Sequential(*(Block() for _ in range(6))).cuda()
        for block in model:
            block.register_forward_hook(lambda *_: None)
        x = torch.ones(16, TOKENS, WIDTH, device="cuda")
        for _ in range(2):
            model(x).sum().backward()

    predicted(train_hooked)


@pytest.mark.long
@card
def test_a_step_that_leaves_little_behind_is_predicted_all_the_same():
    def train_with_a_pool() -> None:
        model = nn.Sequential(*(Block() for _ in range(6))).cuda()
        pool = []  # of up to fifty images, say
        for _ in range(4):
            x = torch.ones(16, TOKENS, WIDTH, device="cuda")
            y = model(x)
            pool.append(y[:1].detach().clone())
            y.sum().backward()

    predicted(train_with_a_pool, within=0.02)


@card
def test_a_model_that_is_put_away_before_the_error_is_read_is_explained_before():
    model = nn.Sequential(*(Block() for _ in range(6))).cuda()
    x = torch.ones(16, TOKENS, WIDTH, device="cuda")

    def step() -> None:
        model.zero_grad()
        model(x).sum().backward()

    def fit() -> None:
        try:
            step()
        except BaseException:
            model.cpu()  # as a framework does that cleans up
            raise

    true = peak_bytes(step)
    text = text_within(0.6 * true, fit)
    assert step_bytes(text) == pytest.approx(true, rel=0.05)


@pytest.mark.long
@card
def test_a_closure_that_an_optimizer_calls_is_forward_and_backward():
    def train_by_closure() -> None:
        model = nn.Sequential(*(Block() for _ in range(6))).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.ones(16, TOKENS, WIDTH, device="cuda")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    text = predicted(train_by_closure, within=0.02)
    assert "most in the optimizer's step" not in text


@pytest.mark.long
@card
def test_rows_that_several_threads_gather_on_the_cpu_are_gathered_by_one():
    def train_on_rows() -> None:
        torch.set_num_threads(2)
        rows = torch.rand(100_000, 3)
        model = nn.Sequential(*(Block() for _ in range(6))).cuda()
        for _ in range(2):
            pick = rows[torch.randint(len(rows), (16 * TOKENS,))].to("cuda")
            x = pick.mean(1).view(16, TOKENS, 1).expand(-1, -1, WIDTH)
            model(x).sum().backward()

    predicted(train_on_rows, within=0.02)


@pytest.mark.long
@card
def test_the_unit_to_checkpoint_is_one_that_the_program_named():
    def train_sequences() -> None:
        class Residual(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Sequential(Block(), nn.Sequential(nn.Identity()))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x + self.inner(x)

        model = nn.Sequential(*(Residual() for _ in range(6))).cuda()
        x = torch.ones(16, TOKENS, WIDTH, device="cuda")
        for _ in range(2):
            model(x).sum().backward()

    text = text_within(0.6 * peak_bytes(train_sequences), train_sequences)
    (action,) = [a for a in remedies(text or "") if a.startswith("checkpointing")]
    assert "Sequential" not in action


@card
def test_the_batch_is_found_where_it_is_what_found_no_room():
    model = Rows(8).cuda()

    def train() -> None:
        for _ in range(2):
            x = torch.randn(8192, 1024, device="cuda")
            model(x).square().mean().backward()

    text = text_within(50 * MIB, train) or ""
    assert "torch.randn(8192, 1024" in text
    assert "batch 8192 -> " in text


@pytest.mark.long
@card
def test_what_saves_no_more_than_less_does_is_not_named():
    model = Rows(16).cuda()
    optimizer = torch.optim.Adam(model.parameters())  # what it takes, no batch saves

    def train() -> None:
        for _ in range(2):
            x = torch.randn(4096, 1024, device="cuda")
            model(x).square().mean().backward()
            optimizer.step()

    actions = remedies(text_within(200 * MIB, train) or "")
    (batch,) = [a for a in actions if a.startswith("batch 4096 -> ")]
    assert not actions[batch]
    assert batch.startswith(("batch 4096 -> 1024,", "batch 4096 -> 512,"))
    assert [a for a in actions if a.startswith("batch")] == [batch]  # with no other


@card
def test_evaluation_that_records_is_told_not_to():
    model = Words().cuda().eval()
    x = torch.randint(WORDS, (16, TOKENS), device="cuda")

    def evaluate() -> None:
        for _ in range(2):
            model(x, x)

    text = text_within(400 * MIB, evaluate)
    assert text is not None
    assert remedies(text)["torch.no_grad() around evaluation"]


@pytest.mark.long
@card
def test_the_batch_is_that_of_the_words():
    model = Words().cuda()
    x = torch.randint(WORDS, (16, TOKENS), device="cuda")
    places = torch.zeros(1, TOKENS, 64 * WIDTH, device="cuda")  # larger, and of all
    text = text_within(600 * MIB, lambda: model(x, x).backward())
    assert text is not None
    assert "batch 16 -> " in text
    assert places.shape[0] == 1


@pytest.mark.long
@pytest.mark.parametrize("fused", [True, None])
@card
def test_what_the_optimizer_will_make_is_predicted(fused):
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4096, 4096)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(self.linear(x))

    def train_wide() -> None:
        model = nn.Sequential(*(Layer() for _ in range(8))).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        for _ in range(2):
            model(torch.ones(512, 4096, device="cuda")).sum().backward()
            optimizer.step()

    true = peak_bytes(train_wide)
    text = text_within(660 * MIB, train_wide)
    assert text is not None
    assert step_bytes(text) == pytest.approx(true, rel=0.01)
    named = remedies(text)
    assert not any(enough for action, enough in named.items() if "batch" in action)
    assert any("fused=True" in action for action in named) == (not fused)


@card
def test_gradients_that_python_never_saw_are_given_back():
    def train_wide() -> None:
        model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(16, 2048, device="cuda")).sum().backward()
            optimizer.step()

    predicted(train_wide, within=0.01)  # the first states are made, the rest is not


@pytest.mark.long
@card
def test_it_has_25_lines_at_most():
    kept = [torch.empty(20 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2)]
    true = peak_bytes(train)
    for fraction in FRACTIONS:
        text = text_within(fraction * true, train)
        assert text is not None
        assert 15 < len(text.splitlines()) - 1 <= 25
    del kept


@card
def test_kernels_of_triton_are_left_out():
    from triton_kernels import gelu

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return gelu(x)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return gelu(x).mul_(grad)

    def train_fused() -> None:
        layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(6)).cuda()
        for _ in range(2):
            x = torch.ones(16384, 1024, device="cuda")
            for layer in layers:
                x = Fused.apply(layer(x))
            x.sum().backward()

    predicted(train_fused)


@pytest.mark.parametrize("product", ["addmm", "baddbmm"])
@card
def test_products_may_be_summed_up_in_another_type(product):
    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sum()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            sum_of = x.new_zeros(x.shape, dtype=torch.float32)
            add = functools.partial(getattr(torch, product), out_dtype=torch.float32)
            add(sum_of, x, x, out=sum_of)
            return add(sum_of, x, x).to(x.dtype)

    def train_summed() -> None:
        layers = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(4)))
        layers.to("cuda", torch.bfloat16)
        shape = (4096, 4096) if product == "addmm" else (1, 4096, 4096)
        for _ in range(2):
            x = layers(torch.ones(shape, device="cuda", dtype=torch.bfloat16))
            Summed.apply(x).backward()

    predicted(train_summed)


@torch.jit.script
def near(places: torch.Tensor) -> torch.Tensor:
    return torch.where(places < 8, places, torch.tensor(8).type_as(places))


@card
def test_constants_on_the_device_and_what_torchscript_has_compiled_run_again():
    class Constant(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            places = near(torch.arange(WIDTH, device=x.device))
            return x + places - x.new_tensor([0.5]) + torch.tensor([1.0], device="cuda")

    def train_with_constants() -> None:
        model = nn.Sequential(Block(), Constant(), Block(), Constant(), Block()).cuda()
        x = torch.ones(16, TOKENS, WIDTH, device="cuda")
        for _ in range(2):
            model(x).sum().backward()

    predicted(train_with_constants, within=0.015)


class OwnLoss(torch.autograd.Function):
    """Makes its gradient in forward, where nothing is recorded."""

    @staticmethod
    def forward(ctx, x):
        gradient = x.softmax(-1)
        ctx.save_for_backward(gradient)
        return (x * gradient).sum()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0] * gradient


@pytest.mark.long
@card
def test_a_function_of_the_programs_own_is_part_of_a_step_that_trains():
    def train_with_own_loss() -> None:
        model = nn.Sequential(*(Block() for _ in range(3))).cuda()
        head = nn.Linear(WIDTH, 16 * WORDS).cuda()
        x = torch.ones(16, TOKENS, WIDTH, device="cuda")
        for _ in range(2):
            OwnLoss.apply(head(model(x))).backward()

    text = predicted(train_with_own_loss, fraction=0.75)
    assert "(OwnLoss.forward)" in text.split("\n")[1], text


@card
def test_what_the_failed_step_has_in_a_list_is_made_anew():
    def train_with_predictions() -> None:
        model = nn.ModuleList(Block() for _ in range(6)).cuda()
        x = torch.ones(16, TOKENS, WIDTH, device="cuda")
        for _ in range(2):
            predictions = [model[0](x)]
            for block in model[1:]:
                predictions.append(block(predictions[-1]))
            loss = sum((y - 1).square().mean() for y in predictions)
            loss.backward()

    predicted(train_with_predictions, fraction=0.93, within=0.02)


@pytest.mark.long
@card
def test_what_calls_of_the_failed_step_have_is_made_anew():
    def merged(parts: list[torch.Tensor]) -> torch.Tensor:
        copies = [part.clone() for part in parts]
        return torch.stack([torch.stack(copies), torch.stack(parts)]).sum((0, 1))

    def train_with_merged_gradients() -> None:
        model = nn.Sequential(*(Block() for _ in range(6))).cuda()
        weights = [p for p in model.parameters() if p.dim() > 1]
        x = torch.ones(4, TOKENS, WIDTH, device="cuda")
        for _ in range(2):
            loss = model(x).square().mean()
            parts = []
            for _ in range(4):
                gradients = torch.autograd.grad(loss, weights, retain_graph=True)
                parts.append(torch.cat([g.flatten() for g in gradients]))
            del gradients
            # The engine's thread lets go of the last gradients when it goes on.
            torch.ones(1, device="cuda", requires_grad=True).sum().backward()
            merged(parts)

    predicted(train_with_merged_gradients, fraction=0.9, within=0.02)


@card
def test_what_an_operator_needs_beside_its_result_is_predicted():
    """The backward of softmax multiplies before it sums up."""

    def train_with_scores() -> None:
        keys = nn.Linear(WIDTH, 8 * WORDS).cuda()
        values = nn.Linear(8 * WORDS, 64).cuda()
        x = torch.ones(16, TOKENS, WIDTH, device="cuda")
        for _ in range(2):
            values(keys(x).softmax(-1)).square().mean().backward()

    predicted(train_with_scores)


@card
def test_what_modules_keep_of_the_failed_forward_is_not_there_twice():
    """A module's last output leads to all that its forward saved before it."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, 4 * WIDTH)
            self.outer = nn.Linear(4 * WIDTH, WIDTH)
            self.last: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = self.outer(self.inner(x).relu())
            return x + self.last

    def train_with_outputs_kept() -> None:
        net = nn.Sequential(*(Block() for _ in range(12))).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(16, TOKENS, WIDTH, device="cuda")
        for _ in range(2):
            net(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    predicted(train_with_outputs_kept, fraction=0.85)


@pytest.mark.long
@card
def test_tensors_are_copied_deeply_and_sampled_from_grids():
    def train_with_copies() -> None:
        model = nn.Sequential(*(Block() for _ in range(6))).cuda()
        x = torch.ones(16, TOKENS, WIDTH, device="cuda")
        for _ in range(2):
            grid = x.view(-1, TOKENS, WIDTH // 2, 2).clone().requires_grad_()
            y = F.grid_sample(model(x)[:, None], grid, align_corners=True)
            y.sum().backward()
            kept = copy.deepcopy([grid.grad, [p.grad for p in model.parameters()]])
            del kept

    predicted(train_with_copies, within=0.02)


@pytest.mark.long
@card
def test_gradients_and_states_that_come_late_are_no_growth_of_the_loop():
    def train_with_parts() -> None:
        model = nn.Sequential(*(Block() for _ in range(6))).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.ones(16, TOKENS, WIDTH, device="cuda")
        parts: list[int] = []
        while len(parts) < 4:
            parts.append(1)
            model(x).sum().backward()
            if len(parts) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

    predicted(train_with_parts)


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
@card
def test_the_batch_may_come_second(kind):
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(WORDS, WIDTH)
            layer = nn.TransformerEncoderLayer(WIDTH, 8)
            self.inner: nn.Module = nn.LSTM(WIDTH, WIDTH, 2)
            if kind == "attention":
                self.inner = nn.TransformerEncoder(layer, 3)
            self.head = nn.Linear(WIDTH, WORDS)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(self.tokens(x))
            return F.log_softmax(self.head(y if kind == "attention" else y[0]), -1)

    def read(columns: int = 24) -> None:
        model = Reader().cuda()
        source = torch.randint(WORDS, (4 * 64, columns), device="cuda")
        for i in range(0, 3 * 64, 64):
            x, y = source[i : i + 64], source[i + 1 : i + 65].reshape(-1)
            F.nll_loss(model(x).flatten(0, 1), y).backward()

    true = peak_bytes(read)
    text = text_within(0.6 * true, read)
    (action,) = [action for action in remedies(text or "") if "batch" in action]
    wanted = re.match(r"batch 24 -> (\d+), accumulating", action)
    assert wanted, action
    assert remedies(text or "")[action]
    assert text_within(0.6 * true, lambda: read(int(wanted[1]))) is None


@pytest.mark.parametrize("first", [True, False])
@card
def test_gradients_of_a_first_part_are_there_in_the_next(first):
    """Also where each step begins by forgetting those of the last."""

    def train_rows(rows: int = 2048, parts: int = 1) -> None:
        model = Rows(40).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            if first:
                optimizer.zero_grad()
            for _ in range(parts):
                model(torch.randn(rows, 1024, device="cuda")).sum().backward()
            optimizer.step()
            if not first:
                optimizer.zero_grad()

    true = peak_bytes(train_rows)
    text = text_within(0.7 * true, train_rows) or ""
    found = re.search(r"([\d.]+ MiB)  batch 2048 -> (\d+), accumulating", text)
    assert found, text
    rows = int(found[2])
    then = peak_bytes(lambda: train_rows(rows, 2048 // rows))
    saved = parse_size(found[1].replace(" ", ""))
    assert true - then == pytest.approx(saved, rel=0.02)


@card
def test_a_state_that_is_carried_is_of_a_smaller_batch_too():
    """With its graph, which the next step cuts off."""

    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.cell = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, WORDS)

        def forward(self, x: torch.Tensor, state: object) -> tuple[torch.Tensor, ...]:
            y, state = self.cell(self.tokens(x), state)
            return self.head(y).log_softmax(-1), state

    def write(columns: int = 24) -> None:
        model = Writer().cuda()
        source = torch.randint(WORDS, (3 * 64 + 1, columns), device="cuda")
        state = tuple(torch.zeros(1, columns, WIDTH, device="cuda") for _ in range(2))
        for i in range(0, 3 * 64, 64):
            x, y = source[i : i + 64], source[i + 1 : i + 65].reshape(-1)
            state = tuple(part.detach() for part in state)
            out, state = model(x, state)
            F.nll_loss(out.flatten(0, 1), y).backward()

    true = peak_bytes(write)
    named = remedies(text_within(0.6 * true, write) or "")
    (action,) = [action for action in named if "batch" in action]
    wanted = re.match(r"batch 24 -> (\d+), accumulating", action)
    assert wanted and named[action], named
    assert text_within(0.6 * true, lambda: write(int(wanted[1]))) is None


@pytest.mark.parametrize("fraction", [0.5, 0.7])
@card
def test_a_loop_within_the_step_that_came_half_way_begins_anew(fraction):
    """With the variables that it had bound, and the lists that it had filled."""

    def imagine() -> None:
        cell = Rows(2).cuda()
        optimizer = torch.optim.SGD(cell.parameters())

        def learn(start: torch.Tensor) -> None:
            state = start * 2
            seen = [state]
            for _ in range(6):
                state = cell(state)
                seen.append(state)
            torch.stack([part.square() for part in seen]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(2):
            learn(torch.ones(4096, 1024, device="cuda"))

    predicted(imagine, fraction)


@pytest.mark.long
def test_a_step_that_a_trainer_calls_begins_with_the_states_of_the_one_before(tmp_path):
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "trainer.py").write_text(
        """
import torch
def fit(steps, *parts):
    for _ in range(steps):
        step(*parts)
def step(optimizer, closure):
    closure()
    optimizer.step()
"""
    )
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import sys
sys.path.append({str(library)!r})
import torch
import trainer
layers = [torch.nn.Linear(1024, 1024) for _ in range(16)]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
def closure():
    optimizer.zero_grad()
    model(torch.ones(4096, 1024, device="cuda")).square().mean().backward()
try:
    trainer.fit(2, optimizer, closure)
except torch.OutOfMemoryError as error:
    print(error)
print(torch.cuda.max_memory_allocated())
"""
    )
    card = "1GiB,context=0"
    true = int(execute(sys.executable, program, card=card, anew=True).out)
    conf = f"offload:off,reserve:0,error:full,device_limit:{int(0.5 * true)}"
    text = execute(sys.executable, program, card=card, conf=conf, anew=True).out
    assert step_bytes(text) == pytest.approx(true, rel=0.01)


@card
def test_a_loop_that_breaks_at_a_count_runs_whole_with_a_smaller_batch():
    def train_some(batch: int = 16) -> None:
        model = Words().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for step in range(8):
            if step == 2:
                break
            x = torch.randint(WORDS, (batch, TOKENS), device="cuda")
            model(x, x).backward()
            optimizer.step()
            optimizer.zero_grad()

    true, less = peak_bytes(train_some), peak_bytes(lambda: train_some(8))
    model_bytes = sum(p.numel() * p.element_size() for p in Words().parameters())
    text = text_within(0.9 * true, train_some)
    (size,) = re.findall(r"([\d.]+ \w+)  batch 16 -> 8,", text or "")
    saved = parse_size(size.replace(" ", ""))
    # Gradients of the part before stay.
    assert saved == pytest.approx(true - less, abs=model_bytes), text


@card
def test_states_that_an_optimizer_makes_at_once_stay():
    def train_rows() -> None:
        tables = nn.ModuleList(nn.Embedding(40960, 512) for _ in range(4)).cuda()
        optimizer = torch.optim.Adagrad(tables.parameters())
        for _ in range(2):
            x = torch.randint(40960, (64,), device="cuda")
            optimizer.zero_grad()
            torch.stack([table(x) for table in tables]).square().mean().backward()
            optimizer.step()

    predicted(train_rows, fraction=0.55, within=0.02)


@card
def test_variables_of_a_function_begin_without_values():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4 * WORDS)).cuda()

    def scores(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        y = y.double()
        return y.argmax(-1)

    @torch.no_grad()
    def evaluate() -> None:
        for _ in range(2):
            scores(torch.ones(16 * TOKENS, WIDTH, device="cuda"))

    predicted(evaluate, fraction=0.7)


@pytest.mark.long
@pytest.mark.parametrize("words", [4 * WORDS, 32 * WORDS])
@card
def test_training_is_predicted_where_what_comes_before_records_nothing(words):
    """Scores of the old model are kept while the new one learns."""

    def optimize() -> None:
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
        model = nn.Sequential(*layers, nn.Linear(WIDTH, words)).cuda()
        optimizer = torch.optim.Adam(model.parameters(), fused=True)

        @torch.no_grad()
        def scores(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([model(part).log_softmax(-1) for part in x.chunk(4)])

        def learn(x: torch.Tensor) -> None:
            old = scores(x)
            for part, wanted in zip(x.chunk(4), old.chunk(4), strict=True):
                F.mse_loss(model(part), wanted).backward()
                optimizer.step()
                optimizer.zero_grad()

        for _ in range(2):
            learn(torch.ones(512, WIDTH, device="cuda"))

    predicted(optimize, fraction=0.45, within=0.02)


@pytest.mark.long
@pytest.mark.parametrize("parts", [2, 16])
@pytest.mark.parametrize("fraction", FRACTIONS)
@card
def test_states_come_with_the_turn_that_optimizes_what_others_accumulate(
    fraction, parts
):
    """Which that is says a comparison of what the loop counts."""

    def accumulate() -> None:
        model = Words().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        batches = [torch.randint(WORDS, (16, TOKENS)) for _ in range(2 * parts)]
        for step, batch in enumerate(batches):
            x = batch.cuda()
            loss = model(x, x) / parts
            loss.backward()
            if step == 1:
                print("goes on")
            if (step + 1) % parts == 0 or step + 1 == len(batches):
                optimizer.step()
                optimizer.zero_grad()

    predicted(accumulate, fraction)


@pytest.mark.parametrize("fraction", [0.6, 0.7, 0.75, 0.8, 0.9])
@pytest.mark.parametrize("sets_to_none", [True, False])
@card
def test_gradients_are_gone_as_a_turn_begins_if_the_turn_before_ends_so(
    fraction, sets_to_none
):
    """Also where the optimizer's first step fails, with all gradients there."""

    def run() -> None:
        widths = [(512, 2048), (2048, 512)] * 6
        model = nn.Sequential(*[nn.Linear(*width) for width in widths]).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.ones(1024, 512, device="cuda")
        for _ in range(3):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=sets_to_none)

    predicted(run, fraction, within=0.02)


@pytest.mark.parametrize("fraction", [0.6, 0.75, 0.9])
@card
def test_gradients_of_a_layer_that_is_called_twice_are_predicted(fraction):
    """As they are views, which are not added up in place: there are three at a time."""

    def run() -> None:
        layer = nn.Linear(4096, 4096, bias=False).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.ones(64, 4096, device="cuda")
            loss = layer(x).square().mean() + layer(2 * x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    predicted(run, fraction)


@pytest.mark.parametrize("fraction", [0.6, 0.75, 0.85])
@card
def test_a_step_with_a_scaler_runs_again_where_its_optimizer_fails(fraction):
    def run() -> None:
        widths = [(512, 2048), (2048, 512)] * 6
        model = nn.Sequential(*[nn.Linear(*width) for width in widths]).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler()
        for _ in range(3):
            x = torch.ones(1024, 512, device="cuda")
            with torch.autocast("cuda", torch.float16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    predicted(run, fraction)


@pytest.mark.long
def test_it_is_predicted_before_pytorch_has_made_its_folder_for_what_it_compiles(
    tmp_path,
):
    """On a new machine, by a child that must not write."""
    program, folder = tmp_path / "program.py", tmp_path / "compiled"
    program.write_text(
        """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
def step(count):
    model.cuda()(torch.ones(count, 1024, device="cuda")).sum().backward()
try:
    step(16384)
except torch.OutOfMemoryError as error:
    print(error)
"""
    )
    result = execute(
        sys.executable,
        program,
        card="512MiB,context=0",
        conf="offload:off,reserve:0,error:full",
        TORCHINDUCTOR_CACHE_DIR=str(folder),
        anew=True,
    )
    assert "A whole step needs" in result.out, result.out + result.err
    assert not folder.exists()


@pytest.mark.long
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_what_cublas_takes_for_backward_is_predicted_before_it_does(where, tmp_path):
    """Each thread that computes a product has a workspace of its own."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import torch
model = torch.nn.Linear(2048, 2048, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    for _ in range(2):
        x = torch.ones(8192, 2048, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
except torch.OutOfMemoryError as error:
    print(error)
print(torch.cuda.max_memory_allocated())
"""
    )
    card = "1GiB,context=0,cc=9.0"
    true = int(execute(sys.executable, program, card=card).out)
    limit = {"forward": 170, "backward": 290}[where] << 20
    conf = f"offload:off,reserve:0,error:full,device_limit:{limit}"
    text = execute(sys.executable, program, card=card, conf=conf).out
    assert step_bytes(text) == pytest.approx(true, rel=0.01)


@card
def test_a_loop_that_calls_no_model_is_predicted_with_its_rows():
    def nearest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        squares = a.square().sum(-1)[:, :, None] + b.square().sum(-1)[:, None]
        return (squares - 2 * a @ b.transpose(1, 2)).min(2).values

    model = nn.Linear(3, 3, device="cuda").eval()

    @torch.no_grad()
    def evaluate() -> None:
        clouds = model(torch.rand(192, 512, 3, device="cuda"))
        for begin in range(0, 192, 96):
            part = clouds[begin : begin + 96]
            nearest(part, part.flip(1)).mean()

    text = predicted(evaluate)
    assert "48 of the 96 rows at a time" in text
