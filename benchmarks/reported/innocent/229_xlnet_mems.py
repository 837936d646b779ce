# kind: XLNet reads a long text segment by segment, the hidden states of past segments are handed on as mems, which get longer until mem_len and are then cut at the front, a new text begins without; from huggingface/transformers questions on mems / use_mems (memory goes up with every segment)
import torch
from transformers import XLNetConfig, XLNetModel


class Reader:
    """Mean surprise per segment of a text from the hidden states of the segment before."""

    def __init__(self, mem_len, segment, width=96, layers=3):
        config = XLNetConfig(
            vocab_size=400, d_model=width, n_layer=layers, n_head=4, d_inner=2 * width, mem_len=mem_len,
            reuse_len=None, use_mems_eval=True, dropout=0.0)
        self.segment = segment
        self.model = XLNetModel(config).cuda().eval()
        self.head = torch.nn.Linear(width, 400).cuda()
        self.mems = None

    def forget(self):
        self.mems = None

    @property
    def remembered(self):
        return 0 if self.mems is None else self.mems[0].shape[0]

    @torch.inference_mode()
    def read(self, ids):
        out = self.model(input_ids=ids, mems=self.mems, use_mems=True)
        self.mems = out.mems
        logits = self.head(out.last_hidden_state[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()


def novels(n, tokens, readers=8):
    """Several books at once, all cut at the same number of tokens."""
    for k in range(n):
        g = torch.Generator().manual_seed(k)
        yield torch.randint(0, 400, (readers, tokens), generator=g)


def main(mem_len=320, segment=16):
    torch.manual_seed(0)
    reader = Reader(mem_len, segment)
    for number, text in enumerate(novels(2, tokens=70 * segment)):
        reader.forget()
        total = 0.0
        for i, ids in enumerate(text.cuda().split(segment, dim=1)):
            total += reader.read(ids)
            if i % 14 == 0:
                print(f"novel {number}, segment {i}: {total / (i + 1):.3f} nats, remembers {reader.remembered} tokens")


if __name__ == "__main__":
    main()
