"""Models of transformers for text and sound, trained by plain loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

STEPS = 12


def tokens(rows: int, length: int, vocabulary: int = 30000) -> torch.Tensor:
    return torch.randint(4, vocabulary, (rows, length)).cuda()


def llama() -> None:
    """As it comes: with a cache of keys and values, that training does not need."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=16,
        num_attention_heads=16,
    )
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.train()
    for _ in range(STEPS):
        x = tokens(4, 1024)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=x, labels=x).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def qwen3_bf16_checkpointing() -> None:
    """All in bfloat16, with the library's gradient checkpointing."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=64000,
        hidden_size=1536,
        intermediate_size=4608,
        num_hidden_layers=20,
        num_attention_heads=12,
        num_key_value_heads=4,
    )
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    for _ in range(STEPS):
        x = tokens(4, 2048)
        loss = model(input_ids=x, labels=x, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def gpt_neox_fp32() -> None:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=50304,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=12,
        num_attention_heads=16,
    )
    model = GPTNeoXForCausalLM(config).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        x = tokens(4, 512)
        outputs = model(x, labels=x)
        optimizer.zero_grad()
        outputs.loss.backward()
        optimizer.step()


def bert_padded() -> Iterator[str]:
    """Masked words in sentences padded to the longest of the batch."""
    from transformers import BertConfig, BertForMaskedLM, get_scheduler

    model = BertForMaskedLM(BertConfig()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    schedule = get_scheduler("linear", optimizer, 2, 20)
    model.train()
    for step in range(20):
        longest = (96, 160, 224, 160)[step % 4]
        lengths = torch.randint(longest // 2, longest + 1, (32,))
        lengths[0] = longest
        batch = {
            "input_ids": torch.randint(4, 30000, (32, longest)),
            "attention_mask": (torch.arange(longest) < lengths[:, None]).long(),
            "labels": torch.randint(4, 30000, (32, longest)),
        }
        batch = {k: v.cuda() for k, v in batch.items()}
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield f"{longest} long"


def roberta_classifier() -> None:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    config = RobertaConfig(vocab_size=50265, num_labels=3, max_position_embeddings=514)
    model = RobertaForSequenceClassification(config).cuda().train()
    decayed = [p for n, p in model.named_parameters() if p.ndim > 1]
    rest = [p for n, p in model.named_parameters() if p.ndim <= 1]
    groups = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-5)
    scaler = torch.amp.GradScaler()
    for _ in range(STEPS):
        x, y = tokens(48, 256), torch.randint(3, (48,)).cuda()
        with torch.autocast("cuda", torch.float16):
            loss = model(input_ids=x, labels=y).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


def t5_adafactor() -> None:
    from transformers import Adafactor, T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=768,
        d_ff=2048,
        num_layers=12,
        num_heads=12,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    )
    with torch.device("cuda"):
        model = T5ForConditionalGeneration(config).train()
    optimizer = Adafactor(model.parameters(), lr=1e-3, relative_step=False)
    for _ in range(STEPS):
        loss = model(input_ids=tokens(12, 384), labels=tokens(12, 128)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def bart_summaries() -> None:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(encoder_layers=6, decoder_layers=6, d_model=768)
    with torch.device("cuda"):
        model = BartForConditionalGeneration(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
    for _ in range(STEPS):
        loss = model(input_ids=tokens(8, 768), labels=tokens(8, 128)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def mamba() -> None:
    """Without its kernels: the scan goes token by token."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=32000, hidden_size=768, num_hidden_layers=12)
    model = MambaForCausalLM(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(10):
        x = tokens(8, 96)
        loss = model(x, labels=x).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def mixtral() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
        num_local_experts=8,
        output_router_logits=True,
    )
    with torch.device("cuda"):
        model = MixtralForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        x = tokens(8, 512)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=x, labels=x).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def distilled_bert() -> None:
    """A frozen BERT teaches one of half its depth, hidden states included."""
    from transformers import BertConfig, BertForMaskedLM

    teacher = BertForMaskedLM(BertConfig()).cuda().eval()
    student = BertForMaskedLM(BertConfig(num_hidden_layers=6)).cuda().train()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
    for _ in range(STEPS):
        x = tokens(24, 192)
        with torch.no_grad():
            wanted = teacher(x, output_hidden_states=True)
        got = student(x, labels=x, output_hidden_states=True)
        soft = F.kl_div(
            F.log_softmax(got.logits / 2, -1),
            F.softmax(wanted.logits / 2, -1),
            reduction="batchmean",
        )
        near = F.mse_loss(got.hidden_states[-1], wanted.hidden_states[-1])
        loss = got.loss + soft + near
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def whisper() -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
    )
    model = WhisperForConditionalGeneration(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(STEPS):
        sound = torch.randn(12, 80, 3000).cuda()
        loss = model(input_features=sound, labels=tokens(12, 128)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def wav2vec2() -> Iterator[str]:
    """Sounds of two lengths; the convolutions are frozen, as its authors advise."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(num_labels=12)
    model = Wav2Vec2ForSequenceClassification(config).cuda().train()
    model.freeze_feature_encoder()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    for step in range(16):
        seconds = (10, 14)[step % 2]
        sound = torch.randn(8, 16000 * seconds).cuda()
        loss = model(sound, labels=torch.randint(12, (8,)).cuda()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield f"{seconds} s"


def clip() -> None:
    from transformers import CLIPConfig, CLIPModel

    model = CLIPModel(CLIPConfig()).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.2)
    for _ in range(STEPS):
        batch: dict[str, Any] = {
            "input_ids": tokens(128, 77),
            "pixel_values": torch.randn(128, 3, 224, 224).cuda(),
        }
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**batch, return_loss=True).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


PROGRAMS = (
    *(llama, qwen3_bf16_checkpointing, gpt_neox_fp32, bert_padded),
    *(roberta_classifier, t5_adafactor, bart_summaries, mamba, mixtral),
    *(distilled_bert, whisper, wav2vec2, clip),
)
