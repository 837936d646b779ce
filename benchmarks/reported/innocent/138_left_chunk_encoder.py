# kind: the streaming encoder keeps attention keys of the last 40 chunks and the hypothesis of closed utterances goes to text; after wenet-e2e/wenet forward_chunk with num_decoding_left_chunks
import torch
from torch import nn
import torch.nn.functional as F


class ChunkLayer(nn.Module):
    def __init__(self, dim, kernel):
        super().__init__()
        self.kernel = kernel
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.depthwise = nn.Conv1d(dim, dim, kernel, groups=dim)

    def forward(self, x, att_cache, cnn_cache, left):
        q, k, v = self.qkv(x).chunk(3, -1)
        if att_cache is not None:
            old_k, old_v = att_cache
            k, v = torch.cat([old_k, k], 1), torch.cat([old_v, v], 1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v))
        padded = torch.cat([cnn_cache, x], 1)
        x = x + self.depthwise(padded.transpose(1, 2)).transpose(1, 2)
        return x, (k[:, -left:].clone(), v[:, -left:].clone()), padded[:, -(self.kernel - 1):].clone()


class StreamingEncoder(nn.Module):
    def __init__(self, mels=40, dim=96, layers=3, kernel=7, vocab=60):
        super().__init__()
        self.inp = nn.Linear(mels, dim)
        self.layers = nn.ModuleList(ChunkLayer(dim, kernel) for _ in range(layers))
        self.ctc = nn.Linear(dim, vocab)

    def init_caches(self):
        zeros = [torch.zeros(1, l.kernel - 1, self.inp.out_features, device="cuda") for l in self.layers]
        return [None] * len(self.layers), zeros

    def forward(self, feats, caches, left):
        x = self.inp(feats)
        att, cnn = caches
        for i, layer in enumerate(self.layers):
            x, att[i], cnn[i] = layer(x, att[i], cnn[i], left)
        return self.ctc(x)


@torch.inference_mode()
def recognise(encoder, chunks, chunk_size, left_chunks):
    caches = encoder.init_caches()
    pieces, blanks, text = [], 0, []
    for feats in chunks:
        logits = encoder(feats, caches, left_chunks * chunk_size)
        pieces.append(logits)
        blanks = blanks + 1 if int(logits.argmax()) % 3 == 0 else 0
        if blanks >= 2 or len(pieces) >= 10:
            best = torch.cat(pieces, 1).argmax(-1)[0].unique_consecutive().tolist()
            text.append(" ".join(map(str, best)))
            pieces.clear()
    return text


torch.manual_seed(0)
encoder = StreamingEncoder().cuda().eval()
stream = (torch.randn(1, 16, 40, device="cuda") for _ in range(150))
lines = recognise(encoder, stream, 16, 40)
print(len(lines), "utterances")
