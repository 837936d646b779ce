# CARD: 32GiB
# KNOBS: BATCH=512 GRAD_CKPT PRECISION=amp_bf16 CHECKPOINT=Block,TransformerEncoderLayer OPT FUSED
# EXPERT: the activations of the 12 blocks of the image tower (512 x 197 tokens) and of the 12 text layers (512 x 77), autocast is on already; batch 256 (the contrastive loss then sees fewer negatives), the towers' own gradient checkpointing, or checkpoint the blocks of the image tower alone; checkpointing only the text layers, fp32 or another optimizer is not enough
# Source: facebookresearch/MetaCLIP 47 (ViT-B-16-quickgelu on a V100 with 32 GB: out of memory with batch 512, 26 GB with 256; fixed with grad checkpointing); timm, text tower written by hand
import argparse
import os

import timm
import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=int(os.environ.get("BATCH", 512)))
parser.add_argument("--grad-checkpointing", action="store_true", default=os.environ.get("GRAD_CKPT", "0") == "1")
parser.add_argument("--precision", default=os.environ.get("PRECISION", "amp_bf16"), choices=["fp32", "amp_bf16"])
parser.add_argument("--lr", type=float, default=5e-4)
parser.add_argument("--wd", type=float, default=0.2)
parser.add_argument("--steps", type=int, default=2)


class TextTransformer(nn.Module):
    def __init__(self, context=77, vocab=49408, width=512, layers=12, heads=8, out=512):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.positional_embedding = nn.Parameter(torch.randn(context, width) * 0.01)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation=F.gelu, batch_first=True, norm_first=True)
        self.resblocks = nn.ModuleList(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).layers)
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Linear(width, out, bias=False)
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu_(1), persistent=False)
        self.grad_checkpointing = False

    def forward(self, text):
        x = self.token_embedding(text) + self.positional_embedding
        for block in self.resblocks:
            if self.grad_checkpointing and self.training:
                x = torch.utils.checkpoint.checkpoint(block, x, self.mask, use_reentrant=False)
            else:
                x = block(x, self.mask)
        x = self.ln_final(x)
        return self.text_projection(x[torch.arange(x.shape[0], device=x.device), text.argmax(-1)])


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = timm.create_model("vit_base_patch16_clip_quickgelu_224", pretrained=False, num_classes=512)
        self.text = TextTransformer()
        self.logit_scale = nn.Parameter(torch.tensor(2.6593))

    def set_grad_checkpointing(self, enable=True):
        self.visual.set_grad_checkpointing(enable)
        self.text.grad_checkpointing = enable

    def forward(self, image, text):
        return F.normalize(self.visual(image), dim=-1), F.normalize(self.text(text), dim=-1), self.logit_scale.exp()


def clip_loss(img, txt, scale):
    logits = scale * img @ txt.t()
    labels = torch.arange(logits.shape[0], device=logits.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def main():
    args = parser.parse_args()
    model = CLIP().cuda()
    if args.grad_checkpointing:
        model.set_grad_checkpointing()
    model = knobs.apply(model).train()
    gain = [p for p in model.parameters() if p.ndim < 2]
    rest = [p for p in model.parameters() if p.ndim >= 2]
    opt = torch.optim.AdamW([{"params": gain, "weight_decay": 0.0}, {"params": rest, "weight_decay": args.wd}], lr=args.lr, betas=(0.9, 0.98), eps=1e-6)
    g = torch.Generator().manual_seed(0)
    for step in range(args.steps):
        images = torch.empty(args.batch_size, 3, 224, 224).cuda(non_blocking=True)
        texts = torch.randint(0, 49408, (args.batch_size, 77), generator=g).cuda(non_blocking=True)
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.precision == "amp_bf16"):
            img, txt, scale = model(images, texts)
            loss = clip_loss(img, txt, scale)
        loss.backward()
        opt.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, 4.6052)
        print(f"step {step} loss {loss.item():.4f} batch {args.batch_size}")


if __name__ == "__main__":
    main()
