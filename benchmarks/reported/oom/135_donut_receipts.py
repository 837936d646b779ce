# CARD: 14.76GiB
# KNOBS: BATCH=1 INPUT_SIZE=2560,1920 MAX_LENGTH=128 FREEZE_ENCODER GRAD_CKPT CHECKPOINT=DonutSwinLayer,MBartDecoderLayer OPT FUSED
# EXPERT: Swin-B on a page of 2560 x 1920 (640 x 480 patches) keeps more than 15 GiB of activations although the batch is 1 and precision is 16-mixed; weights, gradients and Adam are 3 GiB; enough: a smaller INPUT_SIZE (1920,1280 or 1280,960), GRAD_CKPT or CHECKPOINT=DonutSwinLayer, FREEZE_ENCODER; not enough: MAX_LENGTH=64, CHECKPOINT=MBartDecoderLayer, OPT, FUSED
# after clovaai/donut issues 70 and 28 (https://github.com/clovaai/donut/issues/70, https://github.com/clovaai/donut/issues/28), a Tesla T4 with 14.76 GiB; "reducing the batch size didn't help"; 1280 x 960 was said to work with a batch of 1
import os

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import DonutSwinConfig, DonutSwinModel, MBartConfig, MBartForCausalLM, VisionEncoderDecoderModel

import knobs

BATCH = int(os.environ.get("BATCH", 1))
INPUT_SIZE = [int(n) for n in os.environ.get("INPUT_SIZE", "2560,1920").split(",")]
MAX_LENGTH = int(os.environ.get("MAX_LENGTH", 128))
VOCAB = 57580


class Receipts(Dataset):
    """Scans with their JSON as tokens; most receipts are shorter than max_length and padded."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        ids = torch.randint(4, VOCAB, (MAX_LENGTH,), generator=g)
        ids[int(MAX_LENGTH * 0.7):] = 1
        labels = ids.clone()
        labels[ids == 1] = -100
        return torch.rand(3, *INPUT_SIZE, generator=g), ids, labels


def donut_base():
    encoder = DonutSwinConfig(image_size=INPUT_SIZE, patch_size=4, embed_dim=128, depths=[2, 2, 14, 2],
                              num_heads=[4, 8, 16, 32], window_size=10)
    decoder = MBartConfig(vocab_size=VOCAB, d_model=1024, decoder_layers=4, decoder_attention_heads=16,
                          decoder_ffn_dim=4096, max_position_embeddings=1536, is_decoder=True,
                          is_encoder_decoder=False, add_cross_attention=True, scale_embedding=True,
                          add_final_layer_norm=True, activation_function="gelu", use_cache=False)
    model = VisionEncoderDecoderModel(encoder=DonutSwinModel(encoder), decoder=MBartForCausalLM(decoder))
    model.config.pad_token_id = 1
    model.config.decoder_start_token_id = 2
    return model


class DonutModelPLModule(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = donut_base()
        if os.environ.get("FREEZE_ENCODER") == "1":
            self.model.encoder.requires_grad_(False)
        if os.environ.get("GRAD_CKPT") == "1":
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        knobs.apply(self.model)

    def training_step(self, batch, batch_idx):
        pixel_values, decoder_input_ids, labels = batch
        out = self.model(pixel_values=pixel_values, decoder_input_ids=decoder_input_ids[:, :-1],
                         labels=labels[:, 1:].contiguous())
        self.log("train_loss", out.loss)
        return out.loss

    def configure_optimizers(self):
        params = [p for p in self.model.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(params, lr=3e-5)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 300))
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def main():
    L.seed_everything(2022, verbose=False)
    module = DonutModelPLModule()
    trainer = L.Trainer(max_steps=3, accelerator="gpu", devices=1, precision="16-mixed", gradient_clip_val=0.25,
                        logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False)
    trainer.fit(module, DataLoader(Receipts(), batch_size=BATCH))
    print("train_loss", float(trainer.callback_metrics["train_loss"]))


if __name__ == "__main__":
    main()
